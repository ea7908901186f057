//! What becomes of the fake's cards when their drivers are changed: the rules of the real one, without a kernel.

use uuid::Uuid;

use super::State;
use crate::gpu::BindError;
use crate::gpu::sysfs::slot;
use crate::model::card::function::{FunctionState, Restore};
use crate::model::card::pci::PciIds;
use crate::model::card::vgpu::MadeVgpu;
use crate::model::card::{Card, Health};
use crate::model::gpu::PciAddress;

const VFIO: &str = "vfio-pci";

impl State {
    pub(super) fn judge(&mut self) {
        self.discovery = std::mem::take(&mut self.discovery).judged(self.managed.as_ref());
    }

    /// Nothing hangs any more.
    pub(super) fn recover(&mut self) {
        for stuck in std::mem::take(&mut self.stuck) {
            let cards = self.discovery.cards.iter_mut().filter(|card| slot(card.address) == stuck);
            for card in cards.filter(|card| matches!(card.health, Health::Unknown(_))) {
                card.health = Health::Ok;
            }
        }
        self.judge();
    }

    /// The rule of one at a time.
    pub(super) fn begin(&mut self, addresses: &[PciAddress]) -> Result<(), BindError> {
        if let Some(address) = addresses.iter().find(|address| self.changing.contains(&slot(**address))) {
            return Err(BindError::Transient(format!("{address}: its driver is being changed")));
        }
        self.changing.extend(addresses.iter().copied().map(slot));
        Ok(())
    }

    pub(super) fn function(&self, address: PciAddress) -> FunctionState {
        let Some(card) = self.card_of(address) else { return FunctionState::absent(address) };
        let (class, driver) = if card.address == address {
            (Some(card.ids.class), card.driver.clone())
        } else {
            match card.functions.iter().find(|function| function.address == address) {
                Some(function) => (function.class, function.driver.clone()),
                None => return FunctionState::absent(address),
            }
        };
        let is_vfio = if card.address == address { card.is_vfio } else { driver.as_deref() == Some(VFIO) };
        let answers = match &card.health {
            Health::Ok | Health::Asleep => Ok(()),
            Health::NoAnswer(why) | Health::Dropped(why) | Health::Unknown(why) => Err(why.clone()),
        };
        let is_seen = card.holders.iter().any(|holder| holder.device.starts_with("/dev/vfio/"));
        let device = card.ids.device.wrapping_add(u16::from(address.function.abs_diff(card.address.function)));
        let made = card.vgpu.iter().filter(|_| card.address == address).flat_map(|facts| &facts.made);
        let vgpus: Vec<MadeVgpu> = made.cloned().collect();
        let is_open_mdev = |made: &MadeVgpu| made.uuid.filter(|uuid| self.open_mdevs.contains(uuid));
        let open_mdevs: Vec<Uuid> = vgpus.iter().filter_map(is_open_mdev).collect();
        let is_seen = is_seen || !open_mdevs.is_empty();
        FunctionState {
            address,
            is_there: true,
            ids: Some(PciIds { device, class: class.unwrap_or(0), ..card.ids }),
            class,
            driver_override: is_vfio.then(|| VFIO.to_owned()),
            driver,
            is_vfio,
            answers,
            iommu_group: card.iommu.as_ref().map(|group| group.number),
            vgpus,
            open_mdevs,
            is_open: if is_seen { Some(true) } else { card.is_holders_complete.then_some(false) },
        }
    }

    pub(super) fn bind(&mut self, addresses: &[PciAddress]) -> Result<(), BindError> {
        let mut left = Vec::new();
        for &address in addresses {
            let now = self.allowed(address)?;
            if now.is_vfio {
                continue;
            }
            if self.card_of(address).is_some_and(|card| card.address == address && card.is_boot_display) {
                return Err(BindError::Refused(format!("{address} is the boot display: the host's screen is on it")));
            }
            self.refuse_if_held(address)?;
            left.push(address);
        }
        if left.is_empty() {
            return Ok(());
        }
        if let Some(error) = self.next_bind.take() {
            return Err(error);
        }
        self.hang_if_stuck(&left)?;
        for address in left {
            self.give(address, Some(VFIO));
            *self.binds.entry(address).or_default() += 1;
        }
        self.judge();
        Ok(())
    }

    pub(super) fn restore(&mut self, functions: &[Restore]) -> Result<(), BindError> {
        let mut left = Vec::new();
        for one in functions {
            let now = self.allowed(one.address)?;
            if now.driver != one.driver {
                self.refuse_if_held(one.address)?;
                left.push(one);
            }
        }
        if left.is_empty() {
            return Ok(());
        }
        if let Some(error) = self.next_restore.take() {
            return Err(error);
        }
        self.hang_if_stuck(&left.iter().map(|one| one.address).collect::<Vec<_>>())?;
        for one in left {
            self.give(one.address, one.driver.as_deref());
            *self.restores.entry(one.address).or_default() += 1;
            if self.lost_at_restore.remove(&slot(one.address)) {
                self.ail(one.address, Health::NoAnswer("its config space reads 0xffff".to_owned()));
            }
        }
        self.judge();
        Ok(())
    }

    fn card_of(&self, address: PciAddress) -> Option<&Card> {
        let same_slot = |card: &&Card| slot(card.address) == slot(address);
        let exact = self.discovery.card(address);
        exact.or_else(|| self.discovery.cards.iter().filter(|card| !card.is_vf()).find(same_slot))
    }

    fn allowed(&self, address: PciAddress) -> Result<FunctionState, BindError> {
        let now = self.function(address);
        if !now.is_there {
            return Err(BindError::Refused(format!("{address} is not there")));
        }
        match self.card_of(address) {
            Some(card) if !card.is_own() => {
                Err(BindError::Refused(format!("{address} is a virtual function, not a whole card")))
            }
            _ => Ok(now),
        }
    }

    pub(super) fn refuse_if_held(&self, address: PciAddress) -> Result<(), BindError> {
        match self.card_of(address).and_then(|card| card.holders.first()) {
            Some(holder) => Err(BindError::Refused(format!("{address} is in use: {}", holder.words()))),
            None => Ok(()),
        }
    }

    pub(super) fn hang_if_stuck(&mut self, addresses: &[PciAddress]) -> Result<(), BindError> {
        let Some(&address) = addresses.iter().find(|address| self.stuck.contains(&slot(**address))) else {
            return Ok(());
        };
        self.ail(address, Health::Unknown("a change of its driver hangs in the kernel".to_owned()));
        self.judge();
        Err(BindError::Stuck(format!("{address}: a change of its driver hangs in the kernel")))
    }

    fn ail(&mut self, address: PciAddress, health: Health) {
        for card in self.discovery.cards.iter_mut().filter(|card| slot(card.address) == slot(address)) {
            card.health = health.clone();
        }
    }

    fn give(&mut self, address: PciAddress, driver: Option<&str>) {
        let driver = driver.map(str::to_owned);
        let is_vfio = driver.as_deref() == Some(VFIO);
        for card in &mut self.discovery.cards {
            if card.address == address {
                card.is_vfio = is_vfio;
                card.driver.clone_from(&driver);
                card.driver_override = is_vfio.then(|| VFIO.to_owned());
                // NVML knows a card only while the NVIDIA driver has it.
                if let Some(facts) = card.nvml.take() {
                    self.nvml.insert(address, facts);
                }
                if driver.as_deref() == Some("nvidia") {
                    card.nvml = self.nvml.get(&address).cloned();
                }
            }
            for function in card.functions.iter_mut().filter(|function| function.address == address) {
                function.driver.clone_from(&driver);
            }
            let members = card.iommu.iter_mut().flat_map(|group| &mut group.members);
            for member in members.filter(|member| member.address == address) {
                member.driver.clone_from(&driver);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::FakeGpus;
    use crate::gpu::tree_tests::{Tree, at};
    use crate::gpu::{BindError, GpuBackend as _};
    use crate::model::card::function::Restore;
    use crate::model::card::{CardMode, Health, Holder, NvmlFacts};

    const CARD: &str = "0000:41:00.0";
    const AUDIO: &str = "0000:41:00.1";

    fn fake() -> FakeGpus {
        let tree = Tree::new();
        tree.device(CARD, "10de:20b5", 0x03_0200, Some("nvidia"))
            .device(AUDIO, "10de:10f8", 0x04_0300, Some("snd_hda_intel"))
            .group(1, &[CARD, AUDIO]);
        let mut found = tree.look();
        let mut facts = NvmlFacts::at(at(CARD));
        facts.uuid = Some("GPU-a".to_owned());
        found.cards[0].nvml = Some(facts);
        found.cards[0].health = Health::Ok;
        FakeGpus::showing(found.judged(None))
    }

    fn back() -> [Restore; 2] {
        [format!("{CARD}=nvidia"), format!("{AUDIO}=snd_hda_intel")].map(|text| text.parse().unwrap())
    }

    #[tokio::test]
    async fn a_card_goes_and_comes_back_as_it_was() {
        let fake = fake();
        let before = fake.discover().await.unwrap();
        let both = [at(CARD), at(AUDIO)];
        fake.bind(&both).await.unwrap();
        fake.clone().bind(&both).await.unwrap();
        assert_eq!((fake.binds(at(CARD)), fake.binds(at(AUDIO))), (1, 1));
        let card = fake.discover().await.unwrap().card(at(CARD)).unwrap().clone();
        assert_eq!(
            (card.mode, card.nvml.is_some(), card.id().0.as_str()),
            (CardMode::Passthrough, false, "pci-0000:41:00.0")
        );
        let states = fake.functions(&both).await.unwrap();
        assert!(states.iter().all(|state| state.is_vfio && state.answers.is_ok() && state.is_open == Some(false)));
        fake.restore(&back()).await.unwrap();
        assert_eq!(fake.discover().await.unwrap(), before);
        assert_eq!((fake.restores(at(CARD)), fake.restores(at(AUDIO))), (1, 1));
    }

    #[tokio::test]
    async fn faults_come_once_or_stay() {
        let fake = fake();
        fake.fail_next_bind(BindError::Failed("no".to_owned()));
        assert!(matches!(fake.bind(&[at(CARD)]).await, Err(BindError::Failed(_))));
        fake.bind(&[at(CARD)]).await.unwrap();
        let holder = Holder { pid: 7, comm: "qemu".to_owned(), device: "/dev/vfio/1".to_owned(), domain: None };
        fake.open(at(CARD), holder);
        assert_eq!(fake.functions(&[at(CARD)]).await.unwrap()[0].is_open, Some(true));
        assert!(matches!(fake.restore(&back()).await, Err(BindError::Refused(text)) if text.contains("pid 7")));
        fake.close(at(CARD));
        fake.stick(at(AUDIO));
        assert!(matches!(fake.restore(&back()).await, Err(BindError::Stuck(_))));
        assert!(!fake.discover().await.unwrap().cards[0].health.is_good());
        fake.recover();
        fake.lose_at_restore(at(CARD));
        fake.restore(&back()).await.unwrap();
        let card = fake.discover().await.unwrap().cards[0].clone();
        assert!(matches!(card.health, Health::NoAnswer(_)));
        assert!(!card.blockers.is_empty());
        assert!(fake.functions(&[at(AUDIO)]).await.unwrap()[0].answers.is_err());
        fake.vanish(at(CARD));
        assert!(!fake.functions(&[at(CARD)]).await.unwrap()[0].is_there);
        assert!(matches!(fake.bind(&[at(CARD)]).await, Err(BindError::Refused(_))));
    }

    #[tokio::test]
    async fn a_held_change_that_is_dropped_has_changed_nothing() {
        let fake = fake();
        fake.hold_changes();
        let short = std::time::Duration::from_millis(50);
        assert!(tokio::time::timeout(short, fake.bind(&[at(CARD)])).await.is_err());
        fake.recover();
        assert_eq!(fake.binds(at(CARD)), 0);
        fake.bind(&[at(CARD)]).await.unwrap();
    }
}
