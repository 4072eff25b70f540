"""What the batcher does: sizes, queue, limit, why batches close, and what it has learnt of their cost."""

from deploy.grafana.panels import VERSION, Board, Panel, Query, Row, heat, mean, quantile, rate

_EACH = "{{model}} {{version}}"
_BY = "model, version"


def _gauge(name: str) -> str:
    return f"max by ({_BY}) ({name}{{{VERSION}}})"


_FIXED = _gauge("torchgate_batch_model_fixed_seconds")
_PER_ITEM = _gauge("torchgate_batch_model_per_item_seconds")
_MEAN_SIZE = mean("torchgate_batch_size", VERSION, _BY)
_COMPUTE = "torchgate_inference_compute_seconds"

_SIZES = Row(
    "Batches",
    [
        Panel(
            "Sizes",
            "Images in a batch. All in the lowest row: an idle service, or clients that wait for each answer. All at "
            "the limit: the workers never catch up.",
            [heat("torchgate_batch_size", VERSION)],
            unit="short",
            kind="heatmap",
        ),
        Panel(
            "Mean size and limit",
            "The limit is the largest batch whose oldest image still meets its deadline, by the cost learnt below. A "
            "limit far under TORCHGATE_MAX_BATCH_SIZE means that the objective is tight for this model.",
            [
                Query(_MEAN_SIZE, f"{_EACH}, mean"),
                Query(_gauge("torchgate_batch_limit"), f"{_EACH}, limit", dashed=True),
            ],
        ),
        Panel(
            "Why batches close",
            "idle: nothing else waited, so nobody was kept waiting. full and shared: there is more than one batch "
            "holds. deadline: images left early to be in time; the service is near its limit. split: a batch failed "
            "and was tried again in parts.",
            [Query(rate("torchgate_batch_close_total", VERSION, "reason"), "{{reason}}")],
            unit="ops",
            stacked=True,
        ),
    ],
)
_QUEUE = Row(
    "Queue",
    [
        Panel(
            "Images that wait",
            "Past TORCHGATE_MAX_QUEUE_ITEMS requests are refused with 429.",
            [Query(f"sum by ({_BY}) (torchgate_queue_depth{{{VERSION}}})", _EACH)],
        ),
        Panel(
            "Time in the queue",
            "How long images waited for a batch. It should be near nothing until the workers are busy.",
            [
                Query(quantile(share, "torchgate_inference_queue_seconds", VERSION, _BY), f"{_EACH}, p{share * 100:g}")
                for share in (0.5, 0.99)
            ],
            unit="s",
        ),
        Panel(
            "Batches in flight",
            "Batches that the backend has. More workers (torchgate models scale) allow more; a steady line at the top "
            "with a queue behind it says that they are all busy.",
            [Query(f"sum by ({_BY}) (torchgate_inflight_batches{{{VERSION}}})", _EACH)],
            see="torchgate-backend",
        ),
    ],
)
_COST = Row(
    "Cost",
    [
        Panel(
            "Learnt time of a batch's first image",
            "What a batch costs whatever its size: the more, the more batching brings.",
            [Query(_FIXED, _EACH)],
            unit="s",
            width=6,
        ),
        Panel(
            "Learnt time of each image",
            "What every image adds to a batch. A version that got slower shows here, whatever the load.",
            [Query(_PER_ITEM, _EACH)],
            unit="s",
            width=6,
        ),
        Panel(
            "Round trips",
            "Time between handing a batch to the backend and its answer.",
            [Query(quantile(share, _COMPUTE, VERSION, _BY), f"{_EACH}, p{share * 100:g}") for share in (0.5, 0.99)],
            unit="s",
            width=6,
            see="torchgate-backend",
        ),
        Panel(
            "Does the cost fit?",
            "What the learnt cost says of a batch of the mean size, and what such batches took from end to end. They "
            "part where batches wait inside the backend, or when the machine has other work.",
            [
                Query(f"{_FIXED} + {_PER_ITEM} * {_MEAN_SIZE}", f"{_EACH}, learnt", dashed=True),
                Query(mean(_COMPUTE, VERSION, _BY), f"{_EACH}, taken"),
            ],
            unit="s",
            width=6,
        ),
    ],
)
_YIELD = Row(
    "Throughput",
    [
        Panel(
            "Images",
            "Images answered in a second by each version.",
            [Query(rate("torchgate_inference_items_total", VERSION, _BY), _EACH)],
            unit="ops",
            width=12,
            see="torchgate-versions",
        ),
        Panel(
            "Batches",
            "Batches answered in a second by each version.",
            [Query(rate("torchgate_inference_batches_total", VERSION, _BY), _EACH)],
            unit="ops",
            width=12,
        ),
    ],
)
BATCHING = Board(
    "torchgate-batching",
    "torchgate: batching",
    "Why requests wait, and what a batch costs.",
    [_SIZES, _QUEUE, _COST, _YIELD],
)
