"""What becomes of models: their traffic, their rollouts, and how good their answers are."""

from prometheus_client import CollectorRegistry, Counter, Gauge

from service.telemetry.fast_metrics import QuickHistogram
from service.telemetry.labels import CONFIDENCE_BUCKETS, VERSION


class ModelMetrics:
    """The metrics of policies and of the quality of answers."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.traffic_weight = Gauge(
            "torchgate_model_traffic_weight_ratio",
            "Share of the requests that name no version; 1 is all of them.",
            VERSION,
            registry=registry,
        )
        self.label_info = Gauge(
            "torchgate_model_label_info",
            "1 for the version that a label means.",
            ("model", "label", "version"),
            registry=registry,
        )
        self.rollout_events = Counter(
            "torchgate_rollout_events_total",
            "What became of rollouts, counted by the gateway that did it.",
            ("model", "event"),
            registry=registry,
        )
        self.feedback = Counter(
            "torchgate_feedback_total",
            "Images whose right class was given back, by whether the version had found it: correct, wrong.",
            (*VERSION, "result"),
            registry=registry,
        )
        self.prediction_class = Counter(
            "torchgate_prediction_class_total",
            "Images by the class that they were given, copies for shadows included.",
            (*VERSION, "class"),
            registry=registry,
        )
        self.prediction_confidence = QuickHistogram(
            "torchgate_prediction_confidence_ratio",
            "Probability of the class that an image was given, copies for shadows included.",
            VERSION,
            buckets=CONFIDENCE_BUCKETS,
            registry=registry,
        )
        self.drift_score = Gauge(
            "torchgate_drift_score",
            "How far the last images' answers are from the contract's reference: "
            "class is the population stability index, confidence the Kolmogorov-Smirnov distance.",
            (*VERSION, "kind"),
            registry=registry,
        )
        self.drift_threshold = Gauge(
            "torchgate_drift_threshold",
            "Score beyond which a version drifts: what the settings say, or what noise can reach if that is more.",
            (*VERSION, "kind"),
            registry=registry,
        )
        self.drift_window_items = Gauge(
            "torchgate_drift_window_items", "Images that the scores are of.", VERSION, registry=registry
        )
