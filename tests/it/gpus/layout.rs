//! Layout files: all cards as a file says, and a file of how they are.

use gvm::manager::gpus::{LaidOut, LayoutOutcome, LayoutRequest};
use gvm::model::gpu::layout::LayoutFormat;
use gvm::model::gpu::mig::fixtures::a100_80;

use super::*;

const TYPES: [&str; 6] = ["A100D-1-10C", "A100D-2-20C", "A100D-3-40C", "A100D-4-40C", "A100D-20C", "A100D-40C"];

const MIXED: &str = r#"
version: v1
mig-configs:
  mixed:
    - {devices: [0], mig-enabled: true, mig-devices: {"4g.40gb": 1, "2g.20gb": 1, "1g.10gb": 1}}
    - {devices: [1], mig-enabled: false}
"#;

async fn two_cards() -> (World, Life) {
    let world = world(&[CARD, OTHER]);
    for (card, needs_reset) in [(CARD, true), (OTHER, false)] {
        world.gpus.can_divide(at(card), 8, &TYPES, Some(a100_80()), needs_reset);
    }
    let life = world.live().await;
    (world, life)
}

async fn import(life: &Life, text: &str, is_rehearsal: bool) -> gvm::manager::Result<Vec<LaidOut>> {
    let permit = gvm::auth::policy::allow(&admin(life).await, Action::GpuChange).unwrap();
    let request = LayoutRequest { text: text.to_owned(), config: None, is_rehearsal };
    life.manager.import_layout(&permit, request).await
}

fn outcomes(cards: &[LaidOut]) -> Vec<(String, &LayoutOutcome)> {
    cards.iter().map(|card| (card.layout.to_string(), &card.outcome)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn cards_are_divided_as_the_file_says_and_stay_so() {
    let (world, life) = two_cards().await;
    let rehearsed = import(&life, MIXED, true).await.unwrap();
    let layout = "mig: 4g.40gb@0, 2g.20gb@4, 1g.10gb@6".to_owned();
    assert_eq!(
        outcomes(&rehearsed),
        [(layout.clone(), &LayoutOutcome::WouldChange), ("host".to_owned(), &LayoutOutcome::AsWished)]
    );
    assert_eq!(life.store.gpus().await.unwrap()[0].shape, None, "a rehearsal changes nothing");
    assert_eq!(outcomes(&import(&life, MIXED, false).await.unwrap())[0], (layout.clone(), &LayoutOutcome::Changed));
    assert_eq!(outcomes(&import(&life, MIXED, false).await.unwrap())[0], (layout.clone(), &LayoutOutcome::AsWished));
    // Only what the layout has can be had, and an instance is there again, and another one, after its machine.
    let offers = life.manager.gpu_offers(&life.permit(Action::GpuSee)).await.unwrap();
    let free: HashMap<String, u32> = offers.into_iter().map(|offer| (offer.request.to_string(), offer.free)).collect();
    let counts = ["mig:1g.10gb", "mig:2g.20gb", "mig:3g.40gb", "mig:4g.40gb"].map(|what| free[what]);
    assert_eq!(counts, [1, 1, 0, 1]);
    let before = ids(&world).await;
    let vm = create(&life, "train", "mig:2g.20gb").await.unwrap();
    life.settle(vm).await;
    assert_eq!(ids(&world).await, before, "used as it is");
    let (kind, text) = told(import(&life, MIXED.replace("4g.40gb", "3g.40gb").as_str(), false).await.unwrap_err());
    assert_eq!((kind, text.contains("held by VM train")), (Kind::Conflict, true), "{text}");
    life.power(vm, Wanted::Stop).await.unwrap();
    life.settle(vm).await;
    let after = ids(&world).await;
    assert_eq!((after.len(), after == before), (3, false), "the machine's own was made anew");
    // Written and read again, it is what it was.
    let permit = life.permit(Action::GpuSee);
    let text = life.manager.export_layout(&permit, LayoutFormat::MigParted, "current").await.unwrap();
    let again = import(&life, &text, true).await.unwrap();
    assert_eq!(outcomes(&again)[0], (layout, &LayoutOutcome::AsWished), "{text}");
    // After a restart of the host just this is there again.
    life.crash().await;
    world.gpus.restart();
    let life = world.live_with(|host| host.boot_id = "boot-2".to_owned()).await;
    life.manager.restore_gpus().await;
    assert_eq!(ids(&world).await.len(), 3);
}

async fn ids(world: &World) -> Vec<u32> {
    let seen = world.gpus.discover().await.unwrap();
    seen.card(at(CARD)).unwrap().mig().unwrap().instances.iter().map(|made| made.id).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_of_types_limits_what_a_card_carries() {
    let (_world, life) = two_cards().await;
    let file = "version: v1\nvgpu-configs:\n  c: [{devices: [1], vgpu-devices: {A100D-20C: 2}}]\n";
    assert_eq!(outcomes(&import(&life, file, false).await.unwrap())[0].1, &LayoutOutcome::Changed);
    let offers = life.manager.gpu_offers(&life.permit(Action::GpuSee)).await.unwrap();
    let free: HashMap<String, u32> = offers.into_iter().map(|offer| (offer.request.to_string(), offer.free)).collect();
    assert_eq!(
        (free["vgpu:A100D-20C"], free["vgpu:A100D-40C"]),
        (2, 0),
        "the file says two, the card has room for four"
    );
}

/// Overlaps, unknown profiles, too many slices, wrong cards, bombs: nothing is done.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_does_not_fit_changes_nothing() {
    let (_world, life) = two_cards().await;
    let entry = |devices: &str, parts: &str| {
        format!(
            "version: v1\nmig-configs:\n  c: [{{devices: {devices}, mig-enabled: true, mig-devices: {{{parts}}}}}]\n"
        )
    };
    let nine = |of: char| vec![format!("*{of}"); 9].join(", ");
    let bomb = ('b'..='h').zip('a'..).map(|(key, of)| format!("{key}: &{key} [{}]\n", nine(of)));
    let bomb = format!("a: &a [x, x]\n{}", bomb.collect::<String>());
    for (text, says) in [
        (entry("[0]", r#""4g.40gb": 2"#), "4g.40gb"),
        (entry("[0]", r#""3g.40gb": 2, "1g.10gb": 1"#), "1g.10gb"),
        (entry("[0]", r#""3g.20gb": 1"#), "3g.20gb"),
        (entry("[7]", r#""1g.10gb": 1"#), "7"),
        (bomb, ""),
        ("version: v2".to_owned(), "v1"),
    ] {
        let (kind, said) = told(import(&life, &text, false).await.unwrap_err());
        assert_eq!((kind, said.contains(says)), (Kind::Invalid, true), "{text}\n{said}");
    }
    assert!(life.store.gpus().await.unwrap().iter().all(|row| row.shape.is_none()));
}
