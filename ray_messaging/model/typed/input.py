"""Typed columns built from the data of users: arrays, lists, Arrow tables, DataFrames."""

import sys
from collections.abc import Mapping
from contextlib import suppress
from datetime import date, time, timedelta
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ray_messaging.common.texts import short_repr
from ray_messaging.errors import InvalidColumns
from ray_messaging.model.places import NOT_UNICODE
from ray_messaging.model.typed.column import NUMBERS, NumberColumn, TextColumn, TypedColumn
from ray_messaging.model.typed.typed_table import TypedColumns

_FAMILIES: dict[type, tuple[type, ...]] = {
    bool: (bool, np.bool_),
    float: (int, float, np.integer, np.floating),
    str: (str,),
    list: (list, tuple, np.ndarray),
}
# The names of the types of missing values in pandas and numpy. The types themselves cannot be named, because pandas is
# not imported here.
_MISSING = {"NAType", "NaTType", "MaskedConstant"}
_LAST_EXACT = 2**53  # a float represents every whole number up to this one exactly
_DATES = (
    ". Send dates as texts (isoformat(), numpy.datetime_as_string(array)), or as numbers: array.astype('M8[us]')"
    ".astype('int64')"
)
_TYPES = "int8 to int64, uint8 to uint64, float32, float64, bool, strings, or vectors of numbers, all of one length"


def columns(table: object = None, /, **arrays: object) -> TypedColumns:
    """Return payloads as arrays, with one message per row: `columns(price=[1.5, 2.0], text=["buy", "sell"])`.

    Args: `table` is a mapping of names to arrays, a pyarrow Table or RecordBatch, or a pandas DataFrame. Arrays that
    are passed by keyword become columns too. A column is a numpy array, a list, a Series or an Arrow array. It is
    copied, except the strings of an Arrow array, which nobody can change.

    Raises: InvalidColumns if a column cannot be sent. The error names the column, and for an invalid value also the
    row.
    """
    found: list[tuple[object, object]] = [*_columns_of(table), *arrays.items()]
    if not found:
        raise InvalidColumns("columns() needs at least one column: pass one, as in columns(price=array)")
    made: dict[str, TypedColumn] = {}
    for name, values in found:
        if not isinstance(name, str) or not name:
            raise InvalidColumns(f"the name of a column must be a non-empty str, not {name!r}")
        if _broken([name]):
            raise InvalidColumns(f"the name of a column is {name!r}, which {NOT_UNICODE}")
        if name in made:
            raise InvalidColumns(f"two columns have the name {name!r}: rename one", column=name)
        try:
            made[name] = _column(values)
        except InvalidColumns as error:
            error.args = (f"column {name!r}: {error}",)
            error.column = name
            raise
    if len({*map(len, made.values())}) > 1:
        lengths = ", ".join(f"{name!r} has {len(column):,}" for name, column in made.items())
        raise InvalidColumns(f"all columns must have the same number of rows, but {lengths}", column=_odd_one(made))
    return TypedColumns(made, len(next(iter(made.values()))))


def is_table(payloads: object) -> bool:
    """Return whether payloads are typed columns, an Arrow table or a DataFrame."""
    return isinstance(payloads, TypedColumns) or _is_arrow_table(payloads) or _is_data_frame(payloads)


def table_of(payloads: object) -> TypedColumns:
    """Return typed columns, an Arrow table or a DataFrame as typed columns.

    Raises: InvalidColumns if a column cannot be sent.
    """
    return payloads if isinstance(payloads, TypedColumns) else columns(payloads)


def is_array(value: object) -> bool:
    """Return whether a value is an array of numpy, Arrow or pandas."""
    if isinstance(value, np.ndarray):
        return value.ndim > 0
    pandas = sys.modules.get("pandas")
    return _is_arrow_array(value) or (pandas is not None and isinstance(value, pandas.Series))


def _odd_one(made: dict[str, TypedColumn]) -> str:
    """Return the name of the first column whose length differs from that of most columns."""
    lengths = [*map(len, made.values())]
    usual = max(lengths, key=lengths.count)
    return next(name for name, column in made.items() if len(column) != usual)


def _columns_of(table: object) -> list[tuple[object, object]]:
    if table is None:
        return []
    if isinstance(table, Mapping):
        return [*table.items()]
    if isinstance(table, TypedColumns):
        return [*table.columns.items()]
    if _is_arrow_table(table):
        return [*zip(table.schema.names, table.columns, strict=True)]  # type: ignore[attr-defined]  # a table's
    if _is_data_frame(table):
        return [*table.items()]  # type: ignore[attr-defined]  # a DataFrame's
    raise InvalidColumns(
        f"columns() cannot take an object of type {type(table).__name__!r}: pass arrays by name, as in "
        "columns(price=array, text=strings), a pyarrow table or a DataFrame"
    )


# pyarrow and pandas are large, so this module does not import them. If neither is imported yet, the object cannot be
# theirs.
def _is_arrow_table(table: object) -> bool:
    pa = sys.modules.get("pyarrow")
    return pa is not None and isinstance(table, pa.Table | pa.RecordBatch)


def _is_arrow_array(values: object) -> bool:
    pa = sys.modules.get("pyarrow")
    return pa is not None and isinstance(values, pa.Array | pa.ChunkedArray)


def _is_data_frame(table: object) -> bool:
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(table, pandas.DataFrame)


def _column(values: Any) -> TypedColumn:  # noqa: ANN401 - what a user passed
    if isinstance(values, NumberColumn | TextColumn):
        return values
    if _is_arrow_array(values):
        return _of_arrow(values)
    if isinstance(values, str | bytes | Mapping) or not hasattr(values, "__len__"):
        raise InvalidColumns(
            f"an object of type {type(values).__name__!r} cannot be a column: give an array or a list with a value for "
            "each row"
        )
    given = values
    if not isinstance(values, np.ndarray | list):
        # the value is a Series, a range or a tuple
        values = values.to_numpy() if hasattr(values, "to_numpy") else [*values]
    if isinstance(values, np.ndarray) and values.dtype == object and values.ndim and values.size:
        # `array_of` takes a list, and finds the common type of its numbers. An array of strings stays as it is, because
        # `array_of` would only copy the strings into an array again.
        values = values if isinstance(values.flat[0], str) else values.tolist()
    array = values if isinstance(values, np.ndarray) else array_of(values)
    _check_gaps(given, array)
    return TextColumn.of(_texts(array)) if array.dtype.kind in "OUT" else _of_numbers(array)


def _check_gaps(given: Any, array: NDArray[Any]) -> None:  # noqa: ANN401 - what a user passed
    """Raise InvalidColumns for a masked row, or for a missing value that became NaN although `given` has no floats."""
    gaps = np.ma.getmaskarray(given) if isinstance(given, np.ma.MaskedArray) else None
    if gaps is None and array.dtype.kind == "f" and getattr(getattr(given, "dtype", None), "kind", "f") != "f":
        gaps = np.isnan(array)
    if gaps is not None and gaps.any():
        row = int(np.argwhere(gaps)[0][0])
        raise _no_value(row)


def array_of(values: list[Any]) -> NDArray[Any]:
    """Return a list as an array of numbers or bools of one kind, or of vectors of them.

    A list of anything else becomes an array of objects.
    """
    kinds = {*map(type, values)}
    if kinds and all(issubclass(kind, list | tuple | np.ndarray) for kind in kinds):
        kinds = {kind for vector in values for kind in _kinds(vector)}
    families = {_family(kind) for kind in kinds}
    if len(families) <= 1 and families.isdisjoint({str, list}):
        # For vectors of different lengths numpy raises an error, and the list becomes an array of objects.
        with suppress(ValueError, OverflowError):
            found = np.array(values)
            # numpy turns whole numbers into floats if neither int64 nor uint64 can hold all of them.
            changed = found.dtype.kind == "f" and kinds and not any(issubclass(k, float | np.floating) for k in kinds)
            if not changed and not is_rounded(values, found):
                return found
    return np.array([*values, None], object)[:-1]


def _family(kind: type) -> type:
    """Return the family of a type.

    numpy does not change values when all of them are of one family, with these exceptions: values of the families str
    and list may change, and if a list has floats, numpy rounds large whole numbers (see `is_rounded`).
    """
    return next((family for family, kinds in _FAMILIES.items() if issubclass(kind, kinds)), kind)


def _kinds(vector: Any) -> set[type]:  # noqa: ANN401 - a list, a tuple or an array
    if not isinstance(vector, np.ndarray):
        return {*map(type, vector)}
    return {list} if vector.dtype.hasobject or np.ma.is_masked(vector) else {vector.dtype.type}


def exact_array(value: Any, place: str) -> NDArray[Any]:  # noqa: ANN401 - what a user keeps
    """Return a value as an array; raise TypeError if the array would differ from the value.

    `place` is the name of the value in the error.
    """
    found = np.asarray(value, order="C")
    if found.dtype.hasobject or found.dtype.names is not None:
        raise TypeError(f"{place} is an array with the dtype {found.dtype}: use an array of numbers or bools")
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise TypeError(f"{place} has masked values: fill them, or keep the mask as an array of its own")
    if isinstance(value, np.ndarray):
        return found
    if not isinstance(value, np.generic) and is_rounded(value, found):
        raise TypeError(
            f"{place} mixes floats and whole numbers, and as floats some whole numbers would be rounded: keep two "
            "arrays"
        )
    given: list[Any] = [value] if isinstance(value, np.generic) else np.asarray(value, object).ravel().tolist()
    kinds = {*map(type, given)}
    if len(kinds) > 1 and (found.dtype.kind in "USb" or not kinds.isdisjoint({bool, np.bool_})):
        listed = " and ".join(sorted(kind.__name__ for kind in kinds))
        raise TypeError(f"{place} has values of the types {listed}: use one type")
    if found.dtype.kind in "US" and any(text[-1:] in ("\0", b"\0") for text in given):
        raise TypeError(
            f"{place} has a text that ends with a null character, which numpy would cut off: remove the null character"
        )
    return found


def is_rounded(values: Any, array: NDArray[Any]) -> bool:  # noqa: ANN401 - a number, or a list
    """Return whether numpy rounded whole numbers when it made an array of floats from `values`."""
    if array.dtype.kind != "f" or not (np.abs(array) >= _LAST_EXACT).any():
        return False
    given = np.asarray(values, object).ravel()
    return any(
        isinstance(found, int | np.integer) and int(found) != float(rounded)
        for found, rounded in zip(given.tolist(), array.ravel().tolist(), strict=True)
    )


def holds_all(kind: np.dtype[Any], array: NDArray[Any]) -> bool:
    """Return whether a type represents all numbers of an array exactly.

    Floats represent large whole numbers only roughly.
    """
    if array.dtype.kind not in "iu" or kind.kind != "f":
        return True
    # This hides a warning of numpy: 2**63 - 1 as a float is 2**63, which does not fit int64.
    with np.errstate(invalid="ignore"):
        return np.array_equal(array.astype(kind).astype(array.dtype), array)


def _of_numbers(array: NDArray[Any]) -> NumberColumn:
    if array.dtype.name not in NUMBERS:
        raise InvalidColumns(
            f"an array of {array.dtype} cannot be sent: use {_TYPES}{_DATES if array.dtype.kind in 'mM' else ''}"
        )
    if not 1 <= array.ndim <= 2 or (array.ndim == 2 and not array.shape[1]):
        raise InvalidColumns(
            f"an array of the shape {array.shape} cannot be sent: use the shape (n,), or (n, k) for vectors of k "
            "numbers, with k at least 1"
        )
    # The array is copied, because the caller may change its own before the copy is sent. The copy is read-only, because
    # rules get the same copy that is sent.
    values = np.array(array, NUMBERS[array.dtype.name], order="C")
    values.flags.writeable = False
    return NumberColumn(values)


def _texts(array: NDArray[Any]) -> list[str]:
    """Return the strings of an array of strings or objects; raise InvalidColumns if they cannot be a column."""
    if array.ndim != 1:
        if array.dtype != object:
            raise InvalidColumns(
                f"an array of strings of the shape {array.shape} cannot be sent: use the shape (n,), with one string "
                "per row"
            )
        kinds = [{*map(type, np.ravel(row).tolist())} for row in array]
        row = next((row for row, found in enumerate(kinds) if len(found) > 1 or found != kinds[0]), 0)
        raise _unlike_vectors(row, array.tolist())
    texts: list[Any] = array.tolist()
    if {*map(type, texts)} <= {str}:
        return [*map(_whole, range(len(texts)), texts)] if _broken(texts) else texts
    if all(isinstance(text, str) for text in texts):
        # Some texts are objects of subclasses of str, such as numpy's or an Enum's. They become plain strs.
        texts = [*map(str.__str__, texts)]
        return [*map(_whole, range(len(texts)), texts)] if _broken(texts) else texts
    for row, found in enumerate(texts):
        if found is None or (isinstance(found, float) and found != found) or type(found).__name__ in _MISSING:
            raise _no_value(row)
    raise _no_texts(texts)


def _no_texts(texts: list[Any]) -> InvalidColumns:
    """Build the error for a column of objects, some of which are no strs. Args: `texts` has the objects by row."""
    if {*map(type, texts)} == {int}:
        row = next((row for row, found in enumerate(texts) if not -(2**63) <= found < 2**63), 0)
        return InvalidColumns(
            f"row {row} has {short_repr(texts[row])}, and neither int64 nor uint64 can hold all numbers of the column: "
            "send strs",
            row=row,
        )
    if all(_is_vector(found) for found in texts):
        if (lacking := next((row for row, found in enumerate(texts) if np.ma.is_masked(found)), None)) is not None:
            return _lacks_number(lacking)
        forms = [(len(found), _kinds(found)) for found in texts]
        row = next((row for row, form in enumerate(forms) if len(form[1]) > 1 or form != forms[0]), 0)
        return _unlike_vectors(row, texts)
    if all(isinstance(found, np.ndarray) for found in texts):
        masked = next((row for row, found in enumerate(texts) if np.ma.is_masked(found)), None)
        if masked is not None:
            return InvalidColumns(f"row {masked} has {short_repr(texts[masked])}: fill the masked values", row=masked)
        row = next((row for row, found in enumerate(texts) if _form(found) != _form(texts[0])), 0)
        return _unlike_vectors(row, texts)
    row = next((row for row, found in enumerate(texts) if type(found) is not type(texts[0])), 0)
    found, first = texts[row], short_repr(texts[0])
    why = f" and row 0 has {first}: use one type," if row else ", which cannot be sent: use"
    dates = _DATES if isinstance(found, date | time | timedelta) else ""
    return InvalidColumns(f"row {row} has {short_repr(found)} ({type(found).__name__}){why} {_TYPES}{dates}", row=row)


def _form(vector: NDArray[Any]) -> tuple[Any, ...]:
    return vector.shape, vector.dtype


def _no_value(row: int) -> InvalidColumns:
    return InvalidColumns(
        f"row {row} has no value: give it one. Only columns of floats can have rows without a value, as NaN", row=row
    )


def _is_vector(value: object) -> bool:
    return isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.ndim > 0)


def _lacks_number(row: int) -> InvalidColumns:
    return InvalidColumns(
        f"row {row} has a vector with a missing number: fill the number in. Only vectors of floats can lack numbers, "
        "as NaN",
        row=row,
    )


def _unlike_vectors(row: int, vectors: list[Any]) -> InvalidColumns:
    before = f", but row 0 has {short_repr(vectors[0])}" if row else ""
    return InvalidColumns(
        f"row {row} has {short_repr(vectors[row])}{before}: use vectors of one type of numbers, and of one length",
        row=row,
    )


def _broken(texts: list[str]) -> bool:
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:
        return True
    return False


def _whole(row: int, text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidColumns(f"row {row} has {short_repr(text)}, which {NOT_UNICODE}", row=row) from error
    return text


def _of_arrow(values: Any) -> TypedColumn:  # noqa: ANN401 - pyarrow.Array or ChunkedArray
    """Return an Arrow array as a column. A null becomes NaN in floats, and is refused in other types."""
    import pyarrow as pa  # noqa: PLC0415 - 80 MB that a group need not load

    kind = values.type
    if pa.types.is_dictionary(kind):
        return _of_arrow(values.cast(kind.value_type))
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
        values = pa.concat_arrays(values.chunks) if isinstance(values, pa.ChunkedArray) else values
    floats = pa.types.is_floating(kind)
    if values.null_count and not floats:
        row = values.is_null().index(True).as_py()
        raise _no_value(row)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or kind == pa.string_view():
        values = values.cast(pa.large_string())
        _, offsets, data = values.buffers()
        bounds = np.frombuffer(offsets, np.int64)[values.offset : values.offset + len(values) + 1] if offsets else _NONE
        return TextColumn(bounds, np.frombuffer(data, np.uint8) if data else _NO_TEXT)
    width = _width(values)
    flat = values.flatten() if width else values
    if width and flat.null_count and not pa.types.is_floating(flat.type):
        row = flat.is_null().index(True).as_py() // width
        raise _lacks_number(row)
    if not (pa.types.is_primitive(flat.type) and str(flat.type) in _ARROW):
        dates = _DATES if pa.types.is_temporal(kind) else ""
        raise InvalidColumns(f"a column of type {kind} cannot be sent: use {_TYPES}{dates}")
    array = flat.to_numpy(zero_copy_only=False)
    # An Arrow array may use the memory of a numpy array, which the caller may change, so this is copied, too.
    return _of_numbers(array.reshape(-1, width) if width else array)


def _width(values: Any) -> int:  # noqa: ANN401 - pyarrow.Array
    """Return the length of an array's vectors; 0 if its rows are no vectors, or vectors of several lengths."""
    import pyarrow as pa  # noqa: PLC0415 - 80 MB that a group need not load
    import pyarrow.compute as pc  # noqa: PLC0415 - a part of pyarrow

    if pa.types.is_fixed_size_list(values.type):
        return int(values.type.list_size)
    if not pa.types.is_list(values.type) and not pa.types.is_large_list(values.type):
        return 0
    lengths = pc.min_max(pc.list_value_length(values)).as_py()
    return int(lengths["min"] or 0) if lengths["min"] == lengths["max"] else 0


_NONE, _NO_TEXT = np.zeros(1, np.int64), np.zeros(0, np.uint8)
_ARROW = {*NUMBERS, "float", "double"}  # the names, in Arrow, of the types that can be sent
