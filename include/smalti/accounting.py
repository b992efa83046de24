"""Accounting: at every stage rows in = rows out + the sum of drops by reason."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Report(BaseModel):
    """What a stage says of its run: small, JSON, the same from a DAG and from the command line.

    Fields are URIs and counts only: it travels through XCom.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    stage: str
    seconds: float = Field(0.0, ge=0, description="wall time of the stage's own work")
    warnings: tuple[str, ...] = ()


class Accounted(Report):
    """A report that cannot be made unless it balances. rows_in and rows_out are to be counted separately."""

    rows_in: int = Field(ge=0)
    rows_out: int = Field(ge=0)
    dropped: dict[str, int] = Field({}, description="reason -> rows")

    @model_validator(mode="after")
    def _balances(self) -> Accounted:
        if self.rows_in != self.rows_out + sum(self.dropped.values()):
            raise ValueError(
                f"{self.stage}: the accounting does not balance: {self.rows_in} rows in, {self.rows_out} out, "
                f"dropped {self.dropped}"
            )
        return self
