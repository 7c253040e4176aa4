//! Decisions: pure functions of values and `now`. No I/O, no clock, no async, no eBPF, no Kubernetes.
