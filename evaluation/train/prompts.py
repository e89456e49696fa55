"""Made-up prompts for the target to answer: every template with every topic, in a seeded order.

They share nothing with MT-Bench, Spec-Bench or any other set that a drafter is measured on.
"""

from __future__ import annotations

import itertools
import random

__all__ = ["prompts"]

TEMPLATES = (
    "Argue for and against spending public money on {}.",
    "Create a quiz with four questions and answers about {}.",
    "Describe {} using a metaphor.",
    "Explain {} to a ten-year-old.",
    "Explain the most common mistake beginners make with {}.",
    "Give a step-by-step plan to learn about {} in a week.",
    "How did {} change over the last hundred years?",
    "List the pros and cons of {}.",
    "Suggest five titles for an article about {}, and say which is best.",
    "Summarize what is known about {} in one paragraph.",
    "What are three common misconceptions about {}?",
    "What would happen if there were no {}? Reason step by step.",
    "Write JSON with name, category and three facts about {}.",
    "Write a Python class that stores notes about {}, with a method to search them.",
    "Write a dialogue between a teacher and a student about {}.",
    "Write a short blog post about {}.",
    "Write a short story that involves {}.",
    "Write an email to a colleague about {}.",
    "You are an expert on {}. Answer a beginner's first three questions.",
)
TOPICS = (
    "antibiotics", "batteries", "bicycles", "bridges", "chess", "city parks", "coffee", "compound interest",
    "coral reefs", "databases", "earthquakes", "encryption", "fermentation", "glaciers", "gravity",
    "insects", "jazz", "learning a language", "lighthouses", "machine learning", "maps", "meditation",
    "museums", "photosynthesis", "prime numbers", "printing", "public libraries", "railways",
    "rainforests", "recycling", "remote work", "robotics", "sleep", "solar panels", "sound waves",
    "supply and demand", "tea", "the Roman Empire", "the Silk Road", "the calendar", "the human heart",
    "the internet", "the water cycle", "time management", "vaccines", "volcanoes", "weather forecasts",
)  # fmt: skip


def prompts(seed: int = 0) -> list[str]:
    """All combinations, shuffled; take as many from the front as there is time for."""
    made = [template.format(topic) for template, topic in itertools.product(TEMPLATES, TOPICS)]
    random.Random(seed).shuffle(made)
    return made
