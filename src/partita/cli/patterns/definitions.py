"""The verbs of `partita patterns` that need definitions only: `check`, `explain`, `design`.

They connect to nothing, so that they run in any build.
"""

from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec

from partita.cli.kit.application import choose_index, choose_models, load
from partita.cli.kit.commands import Given
from partita.cli.patterns.conditions import parse_condition, parse_given
from partita.cli.patterns.design_facts import Designed
from partita.cli.patterns.facts import (
    AccessFacts,
    Checked,
    Explained,
    LintFacts,
    LockFacts,
    TypeFacts,
    index_facts,
)
from partita.errors import ConfigurationError
from partita.patterns.design.access_patterns import check_access
from partita.patterns.design.calculator import calculate_design
from partita.patterns.design.explain import explain as explain_plan
from partita.patterns.design.lints import lint
from partita.patterns.design.prices import read_prices
from partita.patterns.design.report_page import report_page
from partita.patterns.design.schema_lock import compare_lock, write_lock
from partita.patterns.planning.plans import plan_query
from partita.patterns.types.decorators import EntityType


def check(given: Given) -> Checked:
    """Plan the declared access patterns, lint the keys, compare with the lock file."""
    application = load(given.modules)
    models = list(application.models.values())
    for model in models:
        model.check_upcasters()
    types = [_type_facts(model, models) for model in models]
    lock = None if given.lock is None else _lock(Path(given.lock), models, update=given.update)
    is_refused = any(access.is_refused for each in types for access in each.access)
    has_lints = given.strict and any(each.lints for each in types)
    is_broken = lock is not None and lock.state == "broken"
    return Checked(
        is_good=not (is_refused or has_lints or is_broken),
        types=types,
        transactions=list(application.transactions),
        lock=lock,
    )


def _type_facts(model: EntityType[Any], models: list[EntityType[Any]]) -> TypeFacts:
    return TypeFacts(
        name=model.name,
        table=model.table,
        partition=model.partition.text,
        row=model.row.text,
        version=model.version,
        fields={name: field.codec.expected for name, field in model.fields.items()},
        indexes=[index_facts(index) for index in model.indexes],
        views=[view.name for view in model.views],
        access=[
            AccessFacts(each.access.name, each.plan.summary, each.is_refused)
            for each in check_access(model)
        ],
        lints=[LintFacts(each.code, each.message, each.hint) for each in _lints(model, models)],
    )


def _lints(model: EntityType[Any], models: list[EntityType[Any]]) -> Iterable[Any]:
    return lint(model, neighbours=[each for each in models if each is not model])


def _lock(file: Path, models: list[EntityType[Any]], *, update: bool) -> LockFacts:
    text = write_lock(models)
    try:
        kept = file.read_text("utf-8") if file.exists() else None
        if kept is None or update:
            file.write_text(text, "utf-8")
            return LockFacts(str(file), "written", [])
    except (OSError, UnicodeDecodeError) as error:
        raise _unusable(str(file), error, "--lock") from error
    found = [
        LintFacts(each.code, f"{each.subject}: {each.message}", each.hint)
        for each in compare_lock(kept, models)
    ]
    state = "broken" if found else "current" if kept == text else "outdated"
    return LockFacts(str(file), state, found)


def design(given: Given) -> Designed:
    """Compute what types cost under their loads; write the page if one is asked for."""
    models = choose_models(given.targets, load(given.targets))
    prices = read_prices(_text(given.prices, "--prices") if given.prices else _default_prices())
    found = calculate_design(*models, loads=_text(given.loads, "--loads"), prices=prices)
    if given.html is not None:
        title = ", ".join(model.name for model in models)
        _write(Path(given.html), report_page(found, f"Design of {title}"))
    return Designed(**msgspec.structs.asdict(found), page=given.html)


def _default_prices() -> str:
    return files("partita.patterns.design").joinpath("prices.toml").read_text("utf-8")


def _text(file: str, flag: str) -> str:
    try:
        return Path(file).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _unusable(file, error, flag) from error


def _write(file: Path, text: str) -> None:
    try:
        file.write_text(text, "utf-8")
    except OSError as error:
        raise _unusable(str(file), error, "--html") from error


def _unusable(file: str, error: Exception, flag: str) -> ConfigurationError:
    return ConfigurationError(
        "Configuration",
        f"The file {file} cannot be used: {error}.",
        hint=f"Give a file of this project with {flag}.",
    )


def explain(given: Given) -> Explained:
    """Plan a query."""
    application = load([given.target])
    if ":" not in given.target:
        raise ConfigurationError(
            "Configuration",
            f"{given.target!r} does not name a class.",
            hint=f"Write {given.target}:{next(iter(application.models), 'Name')}.",
        )
    (model,) = choose_models([given.target], application)
    via = None if given.via is None else choose_index(_beside(given), application)
    condition = None if given.condition is None else parse_condition(given.condition, model)
    plan = plan_query(model, parse_given(given.given, model), condition, via=via)
    return Explained(
        type=model.name,
        plan=plan.kind.value,
        table=plan.table,
        is_refused=plan.is_refused and not given.allow_scan,
        requests=plan.est_requests,
        summary=plan.summary,
        text=explain_plan(plan, is_allowed=given.allow_scan),
    )


def _beside(given: Given) -> str:
    """Return an index of the same module as `module:name`."""
    return given.via if ":" in given.via else f"{given.target.partition(':')[0]}:{given.via}"
