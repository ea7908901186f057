//! `/v1/images`.

use axum::Json;
use axum::extract::State;

use super::error::ApiError;
use super::{Body, Caller, Path, Shared, audited, convert};
use crate::api::error::ErrorBody;
use crate::api::types::{ImageList, ImageView, ImportImage};
use crate::auth::policy::{self, Action};

/// The catalogue.
#[utoipa::path(get, path = "/v1/images", responses((status = 200, body = ImageList), (status = 403, body = ErrorBody)))]
pub async fn list(State(shared): State<Shared>, caller: Caller) -> Result<Json<ImageList>, ApiError> {
    let permit = caller.permit(Action::ImageSee)?;
    let rows = shared.manager.images(&permit).await?;
    Ok(Json(ImageList { images: rows.iter().map(convert::image).collect() }))
}

/// Imports an image from files on the host.
#[utoipa::path(post, path = "/v1/images", request_body = ImportImage,
    responses((status = 200, body = ImageView), (status = 400, body = ErrorBody), (status = 403, body = ErrorBody),
        (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub async fn import(
    State(shared): State<Shared>,
    caller: Caller,
    Body(body): Body<ImportImage>,
) -> Result<Json<ImageView>, ApiError> {
    let target = body.path.clone();
    let result = async {
        let permit = policy::allow(&caller.0, Action::ImageChange)?;
        let (path, words) = convert::import(&body)?;
        shared.manager.import_image(&permit, path, words).await
    };
    let row = audited(&shared, &caller, "image.import", &target, result.await).await?;
    Ok(Json(convert::image(&row)))
}

/// Removes an image, by id or the newest of a name.
#[utoipa::path(delete, path = "/v1/images/{image}", params(("image" = String, Path)),
    responses((status = 200, body = ImageList), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub async fn remove(
    State(shared): State<Shared>,
    caller: Caller,
    Path(image): Path<String>,
) -> Result<Json<ImageList>, ApiError> {
    let result = async {
        let permit = policy::allow(&caller.0, Action::ImageChange)?;
        shared.manager.remove_image(&permit, &image).await
    };
    audited(&shared, &caller, "image.remove", &image, result.await).await?;
    list(State(shared), caller).await
}
