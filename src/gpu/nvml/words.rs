//! What NVML's errors mean, and which of them are none.

use nvml_wrapper::error::NvmlError;
use nvml_wrapper_sys::bindings::nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_RESOURCES as INSUFFICIENT_RESOURCES;

/// Why something is not known.
#[derive(Debug)]
pub(super) enum Trouble {
    /// The library says no.
    Nvml(NvmlError),
    /// What it says makes no sense.
    Sense(String),
}

impl From<NvmlError> for Trouble {
    fn from(error: NvmlError) -> Self {
        Self::Nvml(error)
    }
}

impl Trouble {
    /// What cannot be asked of this kind of card, or by this version of the library, is no fault of the card.
    pub(super) const fn is_absence(&self) -> bool {
        match self {
            Self::Nvml(error) => is_absence(error),
            Self::Sense(_) => false,
        }
    }

    pub(super) fn words(&self) -> String {
        match self {
            Self::Nvml(error) => words(error),
            Self::Sense(why) => why.clone(),
        }
    }
}

/// True where there is nothing to ask.
pub(super) const fn is_absence(error: &NvmlError) -> bool {
    matches!(error, NvmlError::NotSupported | NvmlError::FailedToLoadSymbol(_) | NvmlError::FunctionNotFound)
}

/// What an error means where that is known.
pub(super) fn words(error: &NvmlError) -> String {
    match error {
        NvmlError::LibloadingError(error) => format!("NVML cannot be loaded: {error}"),
        NvmlError::FailedToLoadSymbol(symbol) => format!("this is no NVML that gvm can use: {symbol}"),
        NvmlError::DriverNotLoaded => "the NVIDIA driver is not loaded".to_owned(),
        NvmlError::LibRmVersionMismatch => "NVML and the NVIDIA driver are of different versions".to_owned(),
        NvmlError::GpuLost => "the card has fallen off the bus".to_owned(),
        NvmlError::NoPermission => "NVML may not be asked by this user".to_owned(),
        NvmlError::UnexpectedVariant(INSUFFICIENT_RESOURCES) => "not enough of the card is left".to_owned(),
        NvmlError::UnexpectedVariant(code) => format!("NVML says {code}, which gvm does not know"),
        error => error.to_string(),
    }
}

/// Why a change was not made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::gpu) enum ActError {
    /// Nothing was changed, and trying again changes nothing as things are.
    Refused(String),
    /// It went wrong.
    Failed(String),
}

impl ActError {
    /// Of an error of the library: what was to be done, what it means, what helps.
    pub(super) fn of(what: &str, error: &NvmlError) -> Self {
        let refused = |why: &str| Self::Refused(format!("{what}: {why}"));
        match error {
            NvmlError::UnexpectedVariant(INSUFFICIENT_RESOURCES) => refused(
                "not enough of the card is left there; remove what is in the way first (INSUFFICIENT_RESOURCES)",
            ),
            NvmlError::NotSupported | NvmlError::FunctionNotFound | NvmlError::FailedToLoadSymbol(_) => refused(
                "card and driver do not do this as they are; see whether MIG is on, and whether the driver is new \
                 enough for the card (NOT_SUPPORTED)",
            ),
            NvmlError::NoPermission => refused("NVML wants root for it; run the manager as root (NO_PERMISSION)"),
            NvmlError::InUse => refused("it is in use; end what runs on it first (IN_USE)"),
            NvmlError::GpuLost => Self::Failed(format!(
                "{what}: the card has fallen off the bus; the host must be restarted (GPU_IS_LOST)"
            )),
            NvmlError::ResetRequired => {
                Self::Failed(format!("{what}: the card must be reset before anything else (RESET_REQUIRED)"))
            }
            error => Self::Failed(format!("{what}: {}", words(error))),
        }
    }
}
