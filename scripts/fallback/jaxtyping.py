"""Array annotations without jaxtyping: `Float[np.ndarray, "n"]` is the array type, unchecked."""

from typing import Any


class _Annotation:
    def __class_getitem__(cls, item: tuple[Any, str]) -> Any:
        return item[0]


Bool = Float = Float64 = Int = Int8 = Int32 = Int64 = UInt64 = _Annotation
