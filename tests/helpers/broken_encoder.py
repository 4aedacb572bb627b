"""A module that cannot be imported."""

no_such_name  # type: ignore[name-defined]  # noqa: B018, F821
