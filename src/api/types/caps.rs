//! Limits on the wire.

use serde::{Deserialize, Deserializer, Serialize};
use utoipa::ToSchema;

/// Limits on the wire; rates in bytes per second. Absent means not limited.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CapsView {
    /// Relative CPU weight, 2 to 10000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_shares: Option<u32>,
    /// CPU time in percent of one core.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_percent: Option<u32>,
    /// Disk operations per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_iops: Option<u64>,
    /// Disk bytes per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_bytes_per_sec: Option<u64>,
    /// Network bytes per second in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub net_in_bytes_per_sec: Option<u64>,
    /// Network bytes per second out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub net_out_bytes_per_sec: Option<u64>,
}

/// Limits to change, a JSON merge patch (RFC 7396): what is absent stays, `null` lifts a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CapsPatch {
    /// Relative CPU weight, 2 to 10000.
    #[serde(deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u32>)]
    pub cpu_shares: Option<Option<u32>>,
    /// CPU time in percent of one core.
    #[serde(deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u32>)]
    pub cpu_percent: Option<Option<u32>>,
    /// Disk operations per second.
    #[serde(deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u64>)]
    pub disk_iops: Option<Option<u64>>,
    /// Disk bytes per second.
    #[serde(deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u64>)]
    pub disk_bytes_per_sec: Option<Option<u64>>,
    /// Network bytes per second in.
    #[serde(deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u64>)]
    pub net_in_bytes_per_sec: Option<Option<u64>>,
    /// Network bytes per second out.
    #[serde(deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u64>)]
    pub net_out_bytes_per_sec: Option<Option<u64>>,
}

/// Serde takes `null` for absent; here they differ.
pub(super) fn given<'de, T: Deserialize<'de>, D: Deserializer<'de>>(value: D) -> Result<Option<T>, D::Error> {
    T::deserialize(value).map(Some)
}
