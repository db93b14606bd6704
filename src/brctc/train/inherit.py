"""What a stage takes over: from the stage before, or from the model of another run."""

from brctc.models import Model, System
from brctc.train.config import Recipe
from brctc.train.recipe import RecipeError


def inherit(system: System, before: System, what: str) -> None:
    """Takes over weights of the stage before: "whole" all that both systems have, "encoder" no decoder's."""
    own = system.state_dict()
    weights = {
        name: tensor
        for name, tensor in before.state_dict().items()
        if name in own and not (what == "encoder" and name.startswith("decoders."))
    }
    for name, tensor in weights.items():
        if tensor.shape != own[name].shape:
            shapes = f"{tuple(tensor.shape)} there and {tuple(own[name].shape)} here"
            raise RecipeError(f"cannot inherit {name}: it has shape {shapes}")
    system.load_state_dict(own | weights)


def inherit_start(system: System, recipe: Recipe, model: Model) -> None:
    """Takes over what the recipe's `start` leaves; refused if it speaks another language."""
    for text, config in recipe.tokens.items():
        wanted = config if config.same_as is None else recipe.tokens[config.same_as]
        found = model.tokenizers.get(text)
        if found is None or found.kind != wanted.kind:
            has = "no" if found is None else found.kind
            raise RecipeError(f"start: {recipe.start} has {has} tokens for {text}, not {wanted.kind}")
    if model.features != recipe.features:
        raise RecipeError(f"start: {recipe.start} takes features {model.features}, not {recipe.features}")
    if model.system.config.normalisation != recipe.model.normalisation:
        raise RecipeError(f"start: {recipe.start} has another model.normalisation than the recipe")
    try:
        inherit(system, model.system, next(iter(recipe.stages.values())).inherit or "whole")
    except RecipeError as error:
        raise RecipeError(f"start: {recipe.start}: {error}") from None
