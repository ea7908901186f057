//! `/v1/gpus`.

use axum::Json;
use axum::extract::State;
use serde::Deserialize;
use utoipa::IntoParams;

use super::error::ApiError;
use super::{Body, Caller, Path, Query, Shared, audited, convert, convert_gpu};
use crate::api::error::ErrorBody;
use crate::api::types::{
    ChangeGpuMode, CreateVm, DryRun, ExportedLayout, GpuList, GpuPlan, GpuView, ImportLayout, LayoutResult, OfferList,
    WithholdGpu,
};
use crate::auth::policy::{self, Action};
use crate::manager::ManagerError;
use crate::manager::gpus::{GpuChange, LayoutRequest, WantedMode};
use crate::model::gpu::layout::LayoutFormat;

type Done<T> = Result<Json<T>, ApiError>;

/// Longest reason.
const MAX_WHY: usize = 200;

/// The cards of this host.
#[utoipa::path(get, path = "/v1/gpus", responses((status = 200, body = GpuList), (status = 403, body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn list(State(shared): State<Shared>, caller: Caller) -> Done<GpuList> {
    let permit = caller.permit(Action::GpuSee)?;
    Ok(Json(convert_gpu::list(shared.manager.gpus(&permit).await?)))
}

/// One card: `{gpu}` is a PCI address or an id.
#[utoipa::path(get, path = "/v1/gpus/{gpu}", params(("gpu" = String, Path)), responses((status = 200, body = GpuView), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody)))]
pub async fn show(State(shared): State<Shared>, caller: Caller, Path(gpu): Path<String>) -> Done<GpuView> {
    let permit = caller.permit(Action::GpuSee)?;
    Ok(Json(convert_gpu::view(shared.manager.gpu(&permit, &gpu).await?)))
}

/// What could be asked for now.
#[utoipa::path(get, path = "/v1/offers", responses((status = 200, body = OfferList), (status = 403, body = ErrorBody)))]
pub async fn offers(State(shared): State<Shared>, caller: Caller) -> Done<OfferList> {
    let permit = caller.permit(Action::GpuSee)?;
    let offers = shared.manager.gpu_offers(&permit).await?;
    Ok(Json(OfferList { offers: offers.into_iter().map(convert_gpu::offer).collect() }))
}

/// How divided cards stand: what lies where, what fits, what is fragmented, and what would mend it.
#[utoipa::path(get, path = "/v1/gpu-plan", responses((status = 200, body = GpuPlan), (status = 403, body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn plan(State(shared): State<Shared>, caller: Caller) -> Done<GpuPlan> {
    let permit = caller.permit(Action::GpuSee)?;
    Ok(Json(convert_gpu::plan(shared.manager.gpu_plan(&permit).await?)))
}

/// What would be made of a request, cards included; nothing is.
#[utoipa::path(post, path = "/v1/dry-run", request_body = CreateVm,
    responses((status = 200, body = DryRun), (status = 400, body = ErrorBody), (status = 403, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub async fn dry_run(State(shared): State<Shared>, caller: Caller, Body(body): Body<CreateVm>) -> Done<DryRun> {
    let permit = policy::allow(&caller.0, Action::VmCreate).map_err(ManagerError::from)?;
    Ok(Json(convert_gpu::dry_run(shared.manager.dry_run(&permit, convert::create(&body)?).await?)))
}

/// Changes what a card is between machines: with VFIO, with the host's driver, or divided.
#[utoipa::path(post, path = "/v1/gpus/{gpu}/mode", params(("gpu" = String, Path)), request_body = ChangeGpuMode,
    responses((status = 200, body = GpuView), (status = 400, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub async fn mode(
    State(shared): State<Shared>,
    caller: Caller,
    Path(gpu): Path<String>,
    Body(body): Body<ChangeGpuMode>,
) -> Done<GpuView> {
    let parsed =
        match body.mode.as_str() {
            "passthrough" => Ok(GpuChange::Mode(WantedMode::Passthrough)),
            "host" => Ok(GpuChange::Mode(WantedMode::Host)),
            "vgpu" => Ok(GpuChange::Mode(WantedMode::Vgpu)),
            "mig" => Ok(GpuChange::Mode(WantedMode::Mig)),
            other => Err(ManagerError::invalid(format!("there is no GPU mode {other:?}"))
                .hint("use passthrough, host, vgpu or mig")),
        };
    change(&shared, &caller, "gpu.mode", &gpu, parsed).await
}

/// Divides cards as a layout file says, or says what it would do.
#[utoipa::path(post, path = "/v1/gpu-layout", request_body = ImportLayout,
    responses((status = 200, body = LayoutResult), (status = 400, body = ErrorBody), (status = 403, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub async fn import_layout(
    State(shared): State<Shared>,
    caller: Caller,
    Body(body): Body<ImportLayout>,
) -> Done<LayoutResult> {
    let request = LayoutRequest { text: body.text, config: body.config, is_rehearsal: body.dry_run };
    let result = async {
        let permit = policy::allow(&caller.0, Action::GpuChange)?;
        shared.manager.import_layout(&permit, request).await
    };
    let cards = audited(&shared, &caller, "gpu.layout", "all", result.await).await?;
    Ok(Json(convert_gpu::laid_out(&cards)))
}

/// Cards as a layout file: `format` is `mig-parted` or `vgpu-device-manager`.
#[utoipa::path(get, path = "/v1/gpu-layout", params(LayoutQuery),
    responses((status = 200, body = ExportedLayout), (status = 400, body = ErrorBody), (status = 403, body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn export_layout(
    State(shared): State<Shared>,
    caller: Caller,
    Query(query): Query<LayoutQuery>,
) -> Done<ExportedLayout> {
    let permit = caller.permit(Action::GpuSee)?;
    let format = match query.format.as_deref().unwrap_or("mig-parted") {
        "mig-parted" => LayoutFormat::MigParted,
        "vgpu-device-manager" => LayoutFormat::VgpuDeviceManager,
        other => {
            let message = format!("there is no layout format {other:?}");
            return Err(ManagerError::invalid(message).hint("use mig-parted or vgpu-device-manager").into());
        }
    };
    let text = shared.manager.export_layout(&permit, format, "current").await?;
    Ok(Json(ExportedLayout { text }))
}

/// In which format.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub struct LayoutQuery {
    /// `mig-parted` (the default) or `vgpu-device-manager`.
    format: Option<String>,
}

/// Keeps a card out of use.
#[utoipa::path(post, path = "/v1/gpus/{gpu}/withhold", params(("gpu" = String, Path)), request_body = WithholdGpu,
    responses((status = 200, body = GpuView), (status = 400, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody)))]
pub async fn withhold(
    State(shared): State<Shared>,
    caller: Caller,
    Path(gpu): Path<String>,
    Body(body): Body<WithholdGpu>,
) -> Done<GpuView> {
    let why = body.why.trim().to_owned();
    let is_text = (1..=MAX_WHY).contains(&why.chars().count()) && !why.chars().any(char::is_control);
    let parsed = match is_text {
        true => Ok(GpuChange::Withhold { why }),
        false => Err(ManagerError::invalid(format!("say why in 1 to {MAX_WHY} characters"))),
    };
    change(&shared, &caller, "gpu.withhold", &gpu, parsed).await
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub struct ReadmitQuery {
    /// Without a self-test.
    #[serde(default)]
    force: bool,
}

/// Takes a card back into use, if it passes its self-test.
#[utoipa::path(post, path = "/v1/gpus/{gpu}/readmit", params(("gpu" = String, Path), ReadmitQuery),
    responses((status = 200, body = GpuView), (status = 400, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub async fn readmit(
    State(shared): State<Shared>,
    caller: Caller,
    Path(gpu): Path<String>,
    Query(query): Query<ReadmitQuery>,
) -> Done<GpuView> {
    let wanted = if query.force { GpuChange::ReadmitUntested } else { GpuChange::Readmit };
    change(&shared, &caller, "gpu.readmit", &gpu, Ok(wanted)).await
}

async fn change(
    shared: &Shared,
    caller: &Caller,
    action: &str,
    gpu: &str,
    parsed: Result<GpuChange, ManagerError>,
) -> Done<GpuView> {
    let result = async {
        let permit = policy::allow(&caller.0, Action::GpuChange)?;
        shared.manager.change_gpu(&permit, gpu, &parsed?).await?;
        shared.manager.gpu(&permit, gpu).await
    };
    let row = audited(shared, caller, action, gpu, result.await).await?;
    Ok(Json(convert_gpu::view(row)))
}
