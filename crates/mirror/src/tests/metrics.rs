//! Tests of the metrics of a mirror against their definitions.

use std::collections::BTreeSet;

use super::*;
use crate::{METRIC_FAMILIES, Metric, MetricKind};

#[tokio::test]
async fn a_mirror_has_every_defined_metric_with_its_labels() {
    let server = start_mirror(vec![quota("*", 1 << 20, 100)]);
    server.ask("GET", "/v2/", Body::empty()).await;
    let metrics: Vec<Metric> = server.mirror.all_metrics().await.unwrap();
    let names: BTreeSet<_> = metrics.iter().map(|metric| metric.family.name).collect();
    let defined: BTreeSet<_> = METRIC_FAMILIES.iter().map(|family| family.name).collect();
    assert_eq!(names, defined);
    assert_eq!(defined.len(), METRIC_FAMILIES.len(), "a name is defined twice");
    for Metric { family, samples } in &metrics {
        let is_counter = family.kind == MetricKind::Counter;
        assert_eq!(is_counter, family.name.ends_with("_total"), "{}", family.name);
        for (labels, _) in samples {
            let labels: Vec<_> = labels.iter().map(|(label, _)| *label).collect();
            assert_eq!(labels, family.labels, "{}", family.name);
        }
    }
}
