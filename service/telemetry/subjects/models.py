"""Metrics of models: traffic, rollouts, feedback and drift."""

from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from service.telemetry.metric_labels import CONFIDENCE_BUCKETS, VERSION


class ModelMetrics:
    """The metrics of traffic policies, rollouts, feedback and drift."""

    def __init__(self, registry: CollectorRegistry) -> None:
        counter = partial(Counter, registry=registry)
        gauge = partial(Gauge, registry=registry)
        histogram = partial(Histogram, registry=registry)

        self.traffic_weight = gauge(
            "torchgate_model_traffic_weight_ratio",
            "Share of the requests without a version that go to this version, 0 to 1.",
            VERSION,
        )
        self.label_info = gauge(
            "torchgate_model_label_info", "1 for the version that a label points to.", ("model", "label", "version")
        )
        self.rollout_events = counter(
            "torchgate_rollout_events_total",
            "Events of rollouts, counted by the gateway that caused them.",
            ("model", "event"),
        )
        self.feedback = counter(
            "torchgate_feedback_total",
            "Images with feedback, by whether the version's class was correct or wrong.",
            (*VERSION, "result"),
        )
        self.prediction_class = counter(
            "torchgate_prediction_class_total",
            "Images by predicted class, shadow copies included.",
            (*VERSION, "class"),
        )
        self.prediction_confidence = histogram(
            "torchgate_prediction_confidence_ratio",
            "Probability of the predicted class, shadow copies included.",
            VERSION,
            buckets=CONFIDENCE_BUCKETS,
        )
        self.drift_score = gauge(
            "torchgate_drift_score",
            "Distance of the last answers from the contract's reference: population stability index (class), "
            "Kolmogorov-Smirnov distance (confidence).",
            (*VERSION, "kind"),
        )
        self.drift_threshold = gauge(
            "torchgate_drift_threshold",
            "Score above which a version drifts: the setting, or the noise level if that is higher.",
            (*VERSION, "kind"),
        )
        self.drift_window_items = gauge(
            "torchgate_drift_window_items", "Images in the window that the drift scores cover.", VERSION
        )
