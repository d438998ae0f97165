"""One older system: its config and ours by one table, and its names of parameters."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from flaxformer_lite.core.model import ModelConfig
from flaxformer_lite.interop.differences import CannotExpress, check_same, resolved
from flaxformer_lite.interop.name_map import PYTORCH, Leaves, Names, WeightName, name_map
from flaxformer_lite.interop.options import Options, Table, read_table, write_table


@dataclass(frozen=True, kw_only=True)
class System:
    """A system whose weights can be imported and exported."""

    name: str
    """The name that `import` and `export` take."""
    template: ModelConfig
    """The constants of the system, and the values of options that its config leaves out."""
    table: Table
    names: Callable[[ModelConfig, Options], Names]
    """Returns the table of names."""
    leaves: Leaves = PYTORCH

    def model_config(self, config: Mapping[str, object]) -> ModelConfig:
        """Returns our model for the system's config. Raises: ValueError that names an option that does not fit."""
        return read_table(self.table, self.options(config), self.template).build()

    def name_map(self, config: Mapping[str, object]) -> list[WeightName]:
        """Returns every parameter of the model under the system's names."""
        model = self.model_config(config)
        return name_map(self.names(model, self.options(config)), model, self.leaves)

    def config_for(self, model: ModelConfig) -> dict[str, object]:
        """Returns the system's config for a model. Raises: CannotExpress that lists the settings it cannot express."""
        try:
            config = write_table(self.table, resolved(model))
            check_same(model, self.model_config(config))
        except ValueError as error:
            raise CannotExpress.of(self.name, error) from None
        return config

    @staticmethod
    def options(config: Mapping[str, object]) -> Options:
        return Options(config, "the config's ")
