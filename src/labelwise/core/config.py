"""The base of every typed config: immutable, refuses unknown keys, and says what is wrong in one line."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, model_validator

from labelwise.core.errors import LabelwiseError, unknown_name

_SHORT = reprlib.Repr()  # of a wrong value, which may be long and deep
_SHORT.maxstring = _SHORT.maxother = 200
_SHORT.maxlist = _SHORT.maxtuple = _SHORT.maxdict = 20


class Config(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=False, allow_inf_nan=False)
    renamed: ClassVar[Mapping[str, str]] = {}  # old key -> its name today: files written before are still read

    @model_validator(mode="before")
    @classmethod
    def _read_old_names(cls, values: Any) -> Any:
        old = cls.renamed.keys() & values.keys() if isinstance(values, dict) else ()
        for name in old:
            if cls.renamed[name] in values:
                raise ValueError(f"{name} is the old name of {cls.renamed[name]}; give only one of them")
        return {cls.renamed.get(key, key): value for key, value in values.items()} if old else values

    @classmethod
    def parse(cls, values: Mapping[str, Any], where: str, *, files: bool = False) -> Self:
        """Validate `values`.

        Args:
            values: By their keys.
            where: Their origin, for the error (`head 'hsq'`, `recipe.yaml`).
            files: Whether a value may be the path of a file that holds it. Only in what the user wrote: a stranger's
                model must not make us open files.
        """
        try:
            return cls.model_validate(dict(values), context={"files": files})
        except ValidationError as error:
            raise _readable(error, where, cls) from None
        except RecursionError:
            raise LabelwiseError(f"{where}: it is nested too deeply") from None
        except LabelwiseError as error:  # from a field that checks itself, such as the options of a registered head
            raise LabelwiseError(f"{where}: {error.message}", options=error.options) from None

    @classmethod
    def field_docs(cls) -> dict[str, str]:
        """What the class docstring's `Args:` say about each field, on one line each."""
        import docstring_parser

        found = docstring_parser.parse(cls.__doc__ or "").params
        return {part.arg_name: " ".join((part.description or "").split()) for part in found}


def may_read_files(info: ValidationInfo) -> bool:
    """For the validator of a field whose value may be in a file; see `Config.parse`."""
    return bool(info.context and info.context.get("files"))


def _readable(error: ValidationError, where: str, cls: type[BaseModel]) -> LabelwiseError:
    """The first problem of a pydantic report as one line."""
    problem = error.errors(include_url=False)[0]
    path = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        *parents, key = problem["loc"]
        at = where if not parents else f"{where}: {'.'.join(str(part) for part in parents)}"
        return unknown_name("key", str(key), _keys_at(cls, parents), at)
    message = problem["msg"].removeprefix("Value error, ")
    at = f"{path}={_SHORT.repr(problem['input'])}: " if path else ""
    return LabelwiseError(f"{where}: {at}{message[0].lower()}{message[1:]}")


def _keys_at(cls: type[BaseModel], path: list[int | str]) -> list[str]:
    """The valid keys of the config that `path` leads to; none where it leads through something else than configs."""
    for part in path:
        field = cls.model_fields.get(str(part))
        if field is None or not (isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)):
            return []
        cls = field.annotation
    return list(cls.model_fields)
