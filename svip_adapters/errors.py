"""Every error a user can meet. Each message says what was expected, what was found and what to do."""

__all__ = ["HostVersionError", "PatchError", "PolicyError", "SvipAdaptersError", "UnsupportedHostError"]


class SvipAdaptersError(Exception):
    """Base class: ``except SvipAdaptersError`` catches all of them."""


class PolicyError(SvipAdaptersError, ValueError):
    """A policy broke its contract, or was built or named with arguments that make no sense."""


class PatchError(SvipAdaptersError, RuntimeError):
    """Patching twice, or reverting something that was patched again on top."""


class HostVersionError(SvipAdaptersError, ImportError):
    """The host is missing, or its version is outside the range this adapter was tested on."""


class UnsupportedHostError(SvipAdaptersError, RuntimeError):
    """The host is there, but this use of it cannot carry a length policy."""
