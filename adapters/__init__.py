"""Adapters, one file a host; installed as ``svip_adapters.adapters``. Importing this imports no host."""

if __name__ != "svip_adapters.adapters":
    # The checkout's folder is called `adapters`, as another project's package is. ImportError, so that
    # libraries which probe for that package with try/except carry on as if it were absent.
    raise ImportError(
        f"expected to be imported as svip_adapters.adapters, found {__name__}: the root of a svip-adapters "
        "checkout is on sys.path. Install it (pip install -e .) and import svip_adapters instead."
    )

__all__ = ["HOSTS"]

HOSTS: dict[str, str] = {
    "eagle": "svip_adapters.adapters.eagle:patch_eagle",
    "glide": "svip_adapters.adapters.glide:patch_glide",
    "transformers": "svip_adapters.adapters.transformers:patch_transformers",
    "vllm": "svip_adapters.adapters.vllm:patch_vllm",
}
