//! `gvm gpu plan`: how divided cards stand.
//!
//! ```text
//! 0000:41:00.0 NVIDIA A100 80GB PCIe: mig, 14 % lost by where things lie
//!   0  1  2  3  4  5  6  7
//!   .  .  .  .  3g.40gb....  train.ann
//!   fits     1 mig:4g.40gb, 4 mig:1g.10gb
//! ```

use crate::api::types::{CardPlanView, GpuPlan, MigInstanceView};
use crate::cli::context::Context;
use crate::cli::error::CliResult;

/// Columns of one memory slice.
const SLICE: usize = 9;

/// Shows it.
///
/// # Errors
/// See [`crate::cli::error::CliError`].
pub async fn show(cx: &Context) -> CliResult {
    let plan: GpuPlan = cx.client.get("/v1/gpu-plan").await?;
    if plan.cards.is_empty() && !cx.out.is_json() {
        cx.out.say("no card of this host is divided; `gvm gpu mode GPU vgpu` or `mig` divides one");
        return Ok(());
    }
    cx.out.result(&plan, || text(&plan))
}

fn text(plan: &GpuPlan) -> String {
    let mut all: Vec<String> = plan.cards.iter().map(card).collect();
    if !plan.advice.is_empty() {
        let advice = plan.advice.iter().map(|advice| format!("  {advice}")).collect::<Vec<_>>().join("\n");
        all.push(format!("To make room:\n{advice}"));
    }
    all.join("\n\n")
}

fn card(card: &CardPlanView) -> String {
    let mut head = format!("{} {}: {}", card.address, card.model, card.mode);
    if card.is_fixed {
        head.push_str(", a layout of its own");
    }
    if let Some(percent) = card.fragmented_percent.filter(|percent| *percent > 0) {
        head.push_str(&format!(", {percent} % of what is free is lost by where things lie"));
    }
    let mut lines = vec![head];
    lines.extend(card.blocked.iter().map(|why| format!("  blocked  {why}")));
    if card.memory_slices > 0 {
        lines.extend(map(card));
    }
    let fits: Vec<String> =
        card.fits.iter().filter(|fit| fit.count > 0).map(|fit| format!("{} {}", fit.count, fit.request)).collect();
    let full: Vec<String> =
        card.fits.iter().filter(|fit| fit.count == 0).map(|fit| format!("{} ({})", fit.request, fit.limit)).collect();
    let rows = [
        ("carries", card.carries.join(", ")),
        (
            "fits",
            if fits.is_empty() { "nothing more".to_owned() } else { format!("{} (one or the other)", fits.join(", ")) },
        ),
        ("full for", full.join("\n           ")),
        ("lost", card.lost.join("; ")),
    ];
    let rows = rows.into_iter().filter(|(_, text)| !text.is_empty());
    lines.extend(rows.map(|(name, text)| format!("  {name:<8} {text}")));
    lines.join("\n")
}

/// Memory slices from left to right, and a line for each instance below them.
fn map(card: &CardPlanView) -> Vec<String> {
    let numbers: String = (0..card.memory_slices).map(|slice| format!("{slice:<SLICE$}")).collect();
    let mut lines = vec![format!("  slices   {}", numbers.trim_end())];
    for instance in &card.instances {
        let MigInstanceView { profile, start, size, state, vm } = instance;
        let at = |slices: u32| usize::try_from(slices).unwrap_or_default() * SLICE;
        let before = " ".repeat(at(*start));
        let width = at(*size).saturating_sub(1);
        let who = vm.clone().map_or_else(|| state.clone(), |vm| format!("{state}: {vm}"));
        lines.push(format!("           {before}{profile:=<width$} {who}"));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::types::FitView;

    #[test]
    fn a_divided_card_is_drawn() {
        let instance = |profile: &str, start, size, state: &str, vm: Option<&str>| MigInstanceView {
            profile: profile.to_owned(),
            start,
            size,
            state: state.to_owned(),
            vm: vm.map(str::to_owned),
        };
        let fit =
            |request: &str, count, limit: &str| FitView { request: request.to_owned(), count, limit: limit.to_owned() };
        let mig = CardPlanView {
            address: "0000:41:00.0".to_owned(),
            model: "NVIDIA A100 80GB PCIe".to_owned(),
            mode: "mig".to_owned(),
            blocked: None,
            memory_slices: 8,
            compute_slices: 7,
            instances: vec![
                instance("1g.10gb", 0, 1, "in-use", Some("train.ann")),
                instance("3g.40gb", 4, 4, "idle", None),
            ],
            is_fixed: false,
            carries: vec!["1 A100D-1-10C".to_owned()],
            fits: vec![fit("mig:1g.10gb", 3, ""), fit("mig:4g.40gb", 0, "4g.40gb: 3 memory slices are free")],
            fragmented_percent: Some(14),
            lost: vec!["4g.40gb: 0 fit, 1 would".to_owned()],
        };
        let vgpu = CardPlanView {
            address: "0000:81:00.0".to_owned(),
            model: "NVIDIA L40S".to_owned(),
            mode: "vgpu".to_owned(),
            blocked: Some("it is out of service: off the bus".to_owned()),
            memory_slices: 0,
            compute_slices: 0,
            instances: Vec::new(),
            carries: Vec::new(),
            fits: Vec::new(),
            fragmented_percent: None,
            lost: Vec::new(),
            ..mig.clone()
        };
        let advice = vec!["4g.40gb@0 on 0000:41:00.0 would have room: move VM train.ann".to_owned()];
        insta::assert_snapshot!(text(&GpuPlan { cards: vec![mig, vgpu], advice }));
    }
}
