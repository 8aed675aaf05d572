"""Objects with conditional writes, and what campaigns keep in them."""

from anabasis.storage.base import ObjectInfo, ObjectStore
from anabasis.storage.open import default_store_url, open_store

__all__ = ["ObjectInfo", "ObjectStore", "default_store_url", "open_store"]
