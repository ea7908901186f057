//! `gvm image`: the catalogue that disks are cloned from.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use jiff::Timestamp;
use serde::de::IgnoredAny;

use super::args::checked;
use super::context::Context;
use super::error::{CliError, CliResult};
use super::progress::Progress;
use super::table::{Align, age, size, table};
use crate::api::client::segment;
use crate::api::types::{ImageList, ImageView, ImportImage};
use crate::model::name::{GuestUser, ImageName};

/// How long the manager may take to copy and check an image.
const IMPORT_DEADLINE: Duration = Duration::from_secs(3600);

/// `gvm image`
#[derive(Debug, Subcommand)]
pub enum ImageCommand {
    /// List the images
    #[command(visible_alias = "ls")]
    List,
    /// Take an image into the catalogue
    Import(ImportArgs),
    /// Take an image out of the catalogue
    Rm {
        /// Name or id
        #[arg(value_parser = clap::builder::NonEmptyStringValueParser::new())]
        image: String,
    },
}

/// Options of `image import`.
#[derive(Debug, Args)]
pub struct ImportArgs {
    /// Folder with an image.toml, or a disk image (qcow2 or raw), on the manager's host
    path: PathBuf,
    /// Name in the catalogue [default: of image.toml; needed for a disk image]
    #[arg(long, value_name = "NAME", value_parser = checked::<ImageName>)]
    name: Option<String>,
    /// Operating system, such as debian12
    #[arg(long, value_name = "OS")]
    os: Option<String>,
    /// The usual login inside
    #[arg(long, value_name = "USER", value_parser = checked::<GuestUser>)]
    user: Option<String>,
    /// Expected SHA-256 of the disk image
    #[arg(long, value_name = "HEX", value_parser = sha256)]
    sha256: Option<String>,
    /// Format of the disk image, found by its content; a raw one without a partition table has to be told
    #[arg(long = "disk-format", value_name = "qcow2|raw", value_parser = ["qcow2", "raw"])]
    disk_format: Option<String>,
}

fn sha256(text: &str) -> Result<String, String> {
    if text.len() == 64 && text.bytes().all(|b| b.is_ascii_hexdigit()) {
        Ok(text.to_ascii_lowercase())
    } else {
        Err("a SHA-256 is 64 hexadecimal digits".to_owned())
    }
}

/// Runs `gvm image`.
///
/// # Errors
/// See [`CliError`].
pub async fn run(cx: &Context, command: ImageCommand) -> CliResult {
    match command {
        ImageCommand::List => list(cx).await,
        ImageCommand::Import(args) => import(cx, args).await,
        ImageCommand::Rm { image } => {
            let _: IgnoredAny = cx.client.delete(&format!("/v1/images/{}", segment(&image))).await?;
            cx.out.result(&serde_json::json!({ "removed": image }), || format!("removed {image}"))
        }
    }
}

async fn list(cx: &Context) -> CliResult {
    let list: ImageList = cx.client.get("/v1/images").await?;
    if list.images.is_empty() && !cx.out.is_json() {
        cx.out.say("no images yet; an administrator takes one in with `gvm image import PATH`");
        return Ok(());
    }
    let now = Timestamp::now();
    cx.out.result(&list, || {
        let columns = [
            ("NAME", Align::Left),
            ("VERSION", Align::Left),
            ("OS", Align::Left),
            ("FORMAT", Align::Left),
            ("SIZE", Align::Right),
            ("USED BY", Align::Right),
            ("AGE", Align::Right),
            ("ID", Align::Left),
        ];
        let row = |image: &ImageView| {
            vec![
                image.name.clone(),
                image.version.clone(),
                image.os.clone(),
                image.format.clone(),
                if image.format == "kernel" { "-".to_owned() } else { size(image.virtual_mib) },
                image.used_by.to_string(),
                age(&image.created_at, now),
                image.id.clone(),
            ]
        };
        table(&columns, list.images.iter().map(row).collect(), cx.out.is_colored())
    })
}

async fn import(cx: &Context, args: ImportArgs) -> CliResult {
    // The manager has another working folder.
    let path = std::path::absolute(&args.path).map_err(|e| CliError::file("cannot use", &args.path, &e))?;
    let path = path.into_os_string().into_string().map_err(|_| CliError::invalid("the path is not text in UTF-8"))?;
    let ImportArgs { path: _, name, os, user, sha256, disk_format } = args;
    let request = ImportImage { path, name, os, user, sha256, disk_format };
    let mut progress = Progress::new(cx.out, Instant::now());
    progress.stage("import", &format!("copying and checking {}", request.path));
    let image: Result<ImageView, _> = cx.client.post_within("/v1/images", &request, IMPORT_DEADLINE).await;
    progress.finish();
    let image = image?;
    cx.out.result(&image, || {
        let size = if image.format == "kernel" { String::new() } else { format!(", {}", size(image.virtual_mib)) };
        format!("imported {} {} ({}{size}), id {}", image.name, image.version, image.os, image.id)
    })
}
