"""The item that an update leaves."""

from collections.abc import Sequence

from tests.simulation.cloud import expressions, values
from tests.simulation.cloud.errors import AwsError, Json, Unsupported, invalid
from tests.simulation.cloud.expressions import Given, Parsed
from tests.simulation.cloud.tables import Table


def updated(
    item: Json,
    table: Table,
    update: Parsed[expressions.Update] | None,
    given: Given,
    *,
    is_new: bool,
) -> Json:
    """The item that an update leaves; every operand is read from the item as it was."""
    if update is None:
        return item
    changes = update.body.changes
    if is_new and all(change.action in {"REMOVE", "DELETE"} for change in changes):
        raise Unsupported("an update that only removes, of an item that is not there")
    targets = [change.path.resolved(given) for change in changes]
    _check_targets(targets, table)
    made = dict(item)
    removed: list[expressions.Steps] = []
    for change, target in zip(changes, targets, strict=True):
        if change.action == "REMOVE":
            _removed(item, target)  # what holds it must be there
            if change.path.of(item, given) is not None:
                removed.append(target)
            continue
        value = _changed(change, item, given)
        if value is None:
            removed.append(target)
        else:
            made = _put(made, target, value)
    for target in sorted(removed, key=lambda steps: [(type(s) is int, s) for s in steps])[::-1]:
        made = _removed(made, target)
    return made


def _changed(change: expressions.Change, item: Json, given: Given) -> Json | None:
    """The new value of a path; None where nothing is left of it."""
    assert change.term is not None
    value = change.term.of(item, given)
    if change.action == "SET":
        if value is None:
            raise invalid(
                "The provided expression refers to an attribute that does not exist in the item"
            )
        return value
    assert value is not None
    held = change.path.of(item, given)
    if change.action == "ADD":
        if held is None:
            return value
        if "N" in value:
            return expressions.added(held, value)
    if held is None:
        return None
    if values.kind_of(held) != values.kind_of(value):
        raise invalid("An operand in the update expression has an incorrect data type")
    return values.union(held, value) if change.action == "ADD" else values.difference(held, value)


def _check_targets(targets: Sequence[expressions.Steps], table: Table) -> None:
    for number, target in enumerate(targets):
        if target[0] in table.schema.names:
            raise invalid(
                "One or more parameter values were invalid: Cannot update attribute "
                f"{target[0]}. This attribute is part of the key"
            )
        for other in targets[:number]:
            short = min(len(target), len(other))
            if target[:short] == other[:short]:
                raise invalid(
                    "Invalid UpdateExpression: Two document paths overlap with each other; must "
                    "remove or rewrite one of these paths"
                )


def _put(members: Json, steps: expressions.Steps, value: Json) -> Json:
    """A copy of the members of a map, with a value at a path."""
    name = str(steps[0])
    if len(steps) == 1:
        return {**members, name: value}
    return {**members, name: _put_inside(members.get(name), steps[1:], value)}


def _put_inside(container: Json | None, steps: expressions.Steps, value: Json) -> Json:
    step = steps[0]
    if container is not None and "M" in container and isinstance(step, str):
        if len(steps) > 1 and step not in container["M"]:
            raise _no_such_path()
        return {"M": _put(container["M"], steps, value)}
    if container is not None and "L" in container and isinstance(step, int):
        members = list(container["L"])
        if len(steps) > 1:
            if step >= len(members):
                raise _no_such_path()
            members[step] = _put_inside(members[step], steps[1:], value)
        elif step < len(members):
            members[step] = value
        else:
            members.append(value)
        return {"L": members}
    raise _no_such_path()


def _removed(members: Json, steps: expressions.Steps) -> Json:
    """A copy of the members of a map, without what is at a path."""
    name = str(steps[0])
    if len(steps) == 1:
        return {each: value for each, value in members.items() if each != name}
    if name not in members:
        raise _no_such_path()
    return {**members, name: _removed_inside(members[name], steps[1:])}


def _removed_inside(container: Json, steps: expressions.Steps) -> Json:
    step = steps[0]
    if "M" in container and isinstance(step, str):
        return {"M": _removed(container["M"], steps)}
    if "L" in container and isinstance(step, int):
        members = list(container["L"])
        if step >= len(members):
            return container
        if len(steps) == 1:
            del members[step]
        else:
            members[step] = _removed_inside(members[step], steps[1:])
        return {"L": members}
    raise _no_such_path()


def _no_such_path() -> AwsError:
    return invalid("The document path provided in the update expression is invalid for update")
