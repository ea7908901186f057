//! What happens when somebody writes to the kernel's files.

use nix::errno::Errno;

use crate::state::{Card, Function, State};

/// A device of the state.
enum Device<'s> {
    Card(&'s mut Card),
    Function(&'s mut Function),
}

impl Device<'_> {
    fn driver(&mut self) -> &mut Option<String> {
        match self {
            Self::Card(card) => &mut card.driver,
            Self::Function(function) => &mut function.driver,
        }
    }
}

fn device<'s>(state: &'s mut State, address: &str) -> Result<Device<'s>, Errno> {
    if let Some(at) = state.cards.iter().position(|card| card.address == address) {
        return Ok(Device::Card(&mut state.cards[at]));
    }
    let (card, number) = state.function(address).ok_or(Errno::ENODEV)?;
    Ok(Device::Function(&mut state.cards[card].functions[number]))
}

/// Writes a line to a file, by the path at which it really lies.
pub fn write(state: &mut State, path: &str, text: &str) -> Result<(), Errno> {
    let text = text.trim();
    let parts: Vec<&str> = path.split('/').collect();
    match parts.as_slice() {
        ["sys", "bus", "pci", "drivers_probe"] => {
            match device(state, text)? {
                Device::Card(card) => card.probe(),
                Device::Function(function) => function.probe(),
            }
            Ok(())
        }
        ["sys", "bus", "pci", "drivers", driver, "unbind"] => {
            let mut found = device(state, text)?;
            if found.driver().as_deref() != Some(*driver) {
                return Err(Errno::ENODEV);
            }
            match found {
                Device::Card(card) => card.unbind(),
                Device::Function(function) => {
                    function.driver = None;
                    Ok(())
                }
            }
        }
        ["sys", "bus", "pci", "drivers", driver, "bind"] => {
            let mut found = device(state, text)?;
            if found.driver().is_some() {
                return Err(Errno::EBUSY);
            }
            *found.driver() = Some((*driver).to_owned());
            Ok(())
        }
        // One that takes every device of a kind: nobody of ours may write it.
        ["sys", "bus", "pci", "drivers", _, "new_id"] => Err(Errno::EPERM),
        ["ctl", "sriov-manage"] => {
            let (way, address) = text.split_once(' ').ok_or(Errno::EINVAL)?;
            let done = match state.card_mut(address) {
                Some(card) => card.sriov_manage(way),
                None => Err(format!("{address} is no card")),
            };
            said(state, done)
        }
        ["ctl", "reset"] => {
            let holder = state.card(text).map(|card| format!("/dev/nvidia{}", card.minor));
            let is_held = state.holders.iter().any(|one| Some(&one.node) == holder.as_ref());
            let done = match state.card_mut(text) {
                Some(_) if is_held => Err(format!("GPU {text} is currently in use by one or more other processes")),
                Some(card) => card.reset(),
                None => Err(format!("{text} is no card")),
            };
            said(state, done)
        }
        ["sys", "devices", _, address, rest @ ..] => attribute(state, address, rest, text),
        _ => Err(Errno::EACCES),
    }
}

fn said(state: &mut State, done: Result<(), String>) -> Result<(), Errno> {
    let Err(why) = done else { return Ok(()) };
    state.said = why;
    Err(Errno::EIO)
}

fn attribute(state: &mut State, address: &str, path: &[&str], text: &str) -> Result<(), Errno> {
    let number = || text.parse::<u32>().map_err(|_| Errno::EINVAL);
    match path {
        ["driver_override"] => {
            match device(state, address)? {
                Device::Card(card) => text.clone_into(&mut card.driver_override),
                Device::Function(function) => text.clone_into(&mut function.driver_override),
            }
            Ok(())
        }
        ["sriov_numvfs"] => state.card_mut(address).ok_or(Errno::ENODEV)?.set_functions(number()?),
        ["nvidia", "current_vgpu_type"] => {
            let (card, function) = state.function(address).ok_or(Errno::ENODEV)?;
            state.cards[card].set_type(function, number()?)
        }
        ["nvidia", "vgpu_params"] | ["reset_method"] => Ok(()),
        ["mdev_supported_types", kind, "create"] => {
            let id = kind.strip_prefix("nvidia-").and_then(|id| id.parse().ok()).ok_or(Errno::EINVAL)?;
            let card = state.cards.iter_mut().find(|card| card.parents().iter().any(|parent| parent == address));
            card.ok_or(Errno::ENODEV)?.create_mdev(address, id, text)
        }
        [uuid, "remove"] => {
            let of = |card: &&mut Card| card.mdevs.iter().any(|mdev| mdev.uuid == *uuid);
            let card = state.cards.iter_mut().find(of).ok_or(Errno::ENODEV)?;
            if card.mdevs.iter().any(|mdev| mdev.uuid == *uuid && mdev.is_in_use) {
                return Err(Errno::EBUSY);
            }
            card.mdevs.retain(|mdev| mdev.uuid != *uuid);
            Ok(())
        }
        _ => Err(Errno::EACCES),
    }
}
