//! Facts of this host. Besides `gpu`, the only place that names /sys and /proc.
