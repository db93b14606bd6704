"""What every recipe section is made of."""

from pydantic import BaseModel, ConfigDict


class Config(BaseModel):
    """A section of a recipe: typed, unchangeable, unknown keys refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)
