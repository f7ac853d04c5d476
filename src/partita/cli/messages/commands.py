"""`partita messages`: its verbs and flags."""

from partita.cli.kit import numbers
from partita.cli.kit.commands import Argument, Family, flag, option
from partita.cli.kit.connected import companion_verbs

MAX = option("--max N", "At most N messages.  [default: all]", type=numbers.POSITIVE_COUNT)
DRY_RUN = flag("--dry-run", "Count only; move nothing.")


_verb = companion_verbs("messages", "partita.cli.messages.verbs")

messages = Family(
    "messages",
    "Messages of queues: look at them, move them, requeue poison.",
    _verb("ls", "List the queues and how many messages each has.", runs="list_queues", example=""),
    _verb(
        "peek",
        "Print the first messages, without receiving them.",
        Argument("QUEUE", "Name of the queue."),
        option("--count N", "Messages, at most 32.", type=numbers.POSITIVE_COUNT, default=32),
        runs="peek",
        example="orders-poison --count 5",
    ),
    _verb(
        "move",
        "Move the visible messages of a queue into another one.",
        Argument("FROM", "Name of the source.", name="source"),
        Argument("TO", "Name of the target; it is created.", name="target"),
        MAX,
        DRY_RUN,
        runs="move",
        example="orders archive --max 100",
    ),
    _verb(
        "requeue",
        "Move the messages of QUEUE-poison back to QUEUE.",
        Argument("QUEUE", "Name of the queue that works on them."),
        option("--poison NAME", "The poison queue.  [default: QUEUE-poison]"),
        MAX,
        DRY_RUN,
        runs="requeue",
        example="orders",
    ),
)
