"""Request: what was asked, as typed models that need no torch; everything that follows is derived from them."""

from veil.request.request import CompareRequest, Request, TableRequest
from veil.request.settings import Settings

__all__ = ["CompareRequest", "Request", "Settings", "TableRequest"]
