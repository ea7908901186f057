//! What NVML says of a card's health. Whoever cannot say that it is well is not taken to be: only what this kind of card
//! or this version of the library cannot be asked is left out.

use nvml_wrapper::Device;
use nvml_wrapper::enums::device::SampleValue;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper_sys::bindings::field_id::NVML_FI_DEV_GET_GPU_RECOVERY_ACTION;

use super::ask::Ask;
use super::raw;
use super::words::Trouble;
use crate::model::card::{RecoveryAction, RemappedRows};

/// Why clocks are held down (`nvmlClocksEventReason*`), of those that heat and power are the cause of. The general one of
/// the hardware counts where none of its causes is told.
const CAUSES: [(u64, &str); 4] = [
    (0x04, "it draws as much power as it may"),
    (0x20, "it is too hot (the driver slows it down)"),
    (0x40, "it is too hot (it slows itself down)"),
    (0x80, "its power supply tells it to slow down"),
];
const HARDWARE: u64 = 0x08;
const HARDWARE_CAUSES: u64 = 0x40 | 0x80;

/// What the driver says it needs.
pub(super) fn recovery(device: &Device<'_>, ask: &Ask<'_>) -> Result<RecoveryAction, Trouble> {
    ask.step("the recovery that it needs")?;
    let told = device.field_values_for(&[FieldId(NVML_FI_DEV_GET_GPU_RECOVERY_ACTION)])?;
    let Some(Ok(sample)) = told.into_iter().next() else { return Err(NvmlError::NoData.into()) };
    let number = match sample.value {
        Ok(SampleValue::U32(number)) => u64::from(number),
        Ok(SampleValue::U64(number)) => number,
        Ok(other) => return Err(Trouble::Sense(format!("{other:?} is no number of a recovery"))),
        // The library is older than the question.
        Err(NvmlError::InvalidArg) => return Err(NvmlError::NotSupported.into()),
        Err(error) => return Err(error.into()),
    };
    Ok(match number {
        0 => RecoveryAction::None,
        1 => RecoveryAction::Reset,
        2 => RecoveryAction::Reboot,
        3 => RecoveryAction::DrainPeers,
        4 => RecoveryAction::DrainAndReset,
        other => RecoveryAction::Other(u32::try_from(other).unwrap_or(u32::MAX)),
    })
}

/// Rows of its memory that were replaced.
pub(super) fn remapped(device: &Device<'_>, ask: &Ask<'_>) -> Result<RemappedRows, Trouble> {
    ask.step("replaced rows of memory")?;
    let raw::RawRows { correctable, uncorrectable, is_pending, has_failed } = raw::remapped_rows(device)?;
    Ok(RemappedRows { correctable, uncorrectable, is_pending, has_failed })
}

/// Why heat or power hold its clocks down.
pub(super) fn throttled(device: &Device<'_>, ask: &Ask<'_>) -> Result<Vec<String>, Trouble> {
    ask.step("what slows it down")?;
    Ok(causes(raw::clock_reasons(device)?))
}

fn causes(bits: u64) -> Vec<String> {
    let mut causes: Vec<String> =
        CAUSES.iter().filter(|(bit, _)| bits & bit != 0).map(|(_, text)| (*text).to_owned()).collect();
    if bits & HARDWARE != 0 && bits & HARDWARE_CAUSES == 0 {
        causes.push("it slows itself down (heat or power)".to_owned());
    }
    causes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_heat_and_power_count() {
        // Idle, set clocks, synchronised boost, display.
        assert!(causes(0x01 | 0x02 | 0x10 | 0x100).is_empty());
        assert_eq!(causes(0x40 | HARDWARE), ["it is too hot (it slows itself down)"]);
        assert_eq!(causes(HARDWARE), ["it slows itself down (heat or power)"]);
        assert_eq!(causes(0x24).len(), 2);
    }
}
