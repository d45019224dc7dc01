# The public names of pretrax. `__init__.py` reads this list, and imports a name on its first use.
from .comparison.comparing import compare as compare
from .data.collators import Collator as Collator
from .data.token_store_files import write_store as write_store
from .inference.answering.answers import answer as answer
from .inference.answering.options import Options as Options
from .objectives.contract import Facts as Facts
from .objectives.contract import Objective as Objective
from .objectives.contract import Rows as Rows
from .objectives.standalone import corruptor as corruptor
from .objectives.token_ids import TokenIds as TokenIds
from .tasks.showing import show as show
from .training.hooks import Hook as Hook
from .training.run import Run as Run
from .training.run_configuration import read_run as read_run
from .training.trained_models import open_run as open_run
from .training.trainer import train as train
