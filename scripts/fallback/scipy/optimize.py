"""Names that can be imported and not called, as in `special`."""

from scipy.special import __getattr__

__all__ = ["__getattr__"]
