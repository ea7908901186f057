//! Cards that were seen: identities, decisions, and what must be put back.

use sqlx::SqliteConnection;
use sqlx::sqlite::SqliteRow;

use super::{Result, Store, StoreError, Write, count, get, int, json, time, to_json};
use crate::model::card::function::Restore;
use crate::model::card::history::GpuHistory;
use crate::model::gpu::GpuId;
use crate::model::gpu::mig::Instance;
use crate::model::inventory::{KnownGpu, Shaped, Withheld};
use crate::model::units::Mib;

fn known(row: &SqliteRow) -> Result<KnownGpu> {
    let memory: Option<i64> = get(row, "memory_mib")?;
    Ok(KnownGpu {
        id: GpuId(get(row, "id")?),
        identity: json(row, "identity")?,
        model: get(row, "model")?,
        vgpu_types: json(row, "vgpu_types")?,
        memory: memory.and_then(|mib| u64::try_from(mib).ok()).map(Mib),
        is_kept: count(row, "is_kept")? != 0,
        shape: match get::<Option<String>>(row, "shape")? {
            Some(_) => Some(json(row, "shape")?),
            None => None,
        },
        own_instances: json(row, "own_instances")?,
        former: json(row, "former")?,
        withheld: match get::<Option<String>>(row, "withheld")? {
            Some(_) => Some(json(row, "withheld")?),
            None => None,
        },
        history: json(row, "health")?,
        seen_at: time(row, "seen_at")?,
    })
}

async fn all(connection: &mut SqliteConnection) -> Result<Vec<KnownGpu>> {
    let rows = sqlx::query("SELECT * FROM gpus ORDER BY id").fetch_all(connection).await.map_err(StoreError::Sql)?;
    rows.iter().map(known).collect()
}

impl Store {
    /// All cards that were ever seen.
    ///
    /// # Errors
    /// [`StoreError::Sql`].
    pub async fn gpus(&self) -> Result<Vec<KnownGpu>> {
        let mut connection = self.readers().acquire().await.map_err(StoreError::Sql)?;
        all(&mut connection).await
    }
}

/// All cards that were ever seen, within a transaction.
///
/// # Errors
/// [`StoreError::Sql`].
pub async fn read(tx: &mut Write) -> Result<Vec<KnownGpu>> {
    all(tx).await
}

/// Writes what a look found out: who a card is. Decisions about a card that is known already stay as they are, but for
/// a card that hung in an earlier boot.
///
/// # Errors
/// [`StoreError::Sql`].
pub async fn see(tx: &mut Write, gpu: &KnownGpu) -> Result<()> {
    sqlx::query(
        "INSERT INTO gpus (id, identity, model, memory_mib, is_kept, former, withheld, seen_at, vgpu_types)
         VALUES ($1, $2, $3, $4, 0, '[]', NULL, $5, $6)
         ON CONFLICT (id) DO UPDATE SET identity = $2, model = $3, memory_mib = $4, seen_at = $5, vgpu_types = $6",
    )
    .bind(&gpu.id.0)
    .bind(to_json(&gpu.identity))
    .bind(&gpu.model)
    .bind(gpu.memory.map(|memory| int(memory.0)))
    .bind(gpu.seen_at.as_microsecond())
    .bind(to_json(&gpu.vgpu_types))
    .execute(&mut **tx)
    .await
    .map(|_| ())
    .map_err(StoreError::Sql)
}

/// Writes what is decided about a card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// It stays with VFIO between machines, or no longer.
    Keep {
        /// Which.
        is_kept: bool,
    },
    /// These drivers must be put back; none: nothing must.
    Former(Vec<Restore>),
    /// What it is divided into, or no longer.
    Shape(Option<Shaped>),
    /// MIG instances of it that gvm made.
    OwnInstances(Vec<Instance>),
    /// Out of use, or back.
    Withhold(Option<Withheld>),
    /// What became of it.
    History(Box<GpuHistory>),
}

/// Writes a decision. True where the card is known.
///
/// # Errors
/// [`StoreError::Sql`].
pub async fn decide(tx: &mut Write, gpu: &GpuId, decision: &Decision) -> Result<bool> {
    let query = match decision {
        Decision::Keep { is_kept } => {
            sqlx::query("UPDATE gpus SET is_kept = $2 WHERE id = $1").bind(&gpu.0).bind(i64::from(*is_kept))
        }
        Decision::Former(former) => {
            sqlx::query("UPDATE gpus SET former = $2 WHERE id = $1").bind(&gpu.0).bind(to_json(former))
        }
        Decision::Shape(shape) => {
            let shape = shape.as_ref().map(to_json);
            sqlx::query("UPDATE gpus SET shape = $2 WHERE id = $1").bind(&gpu.0).bind(shape)
        }
        Decision::OwnInstances(instances) => {
            sqlx::query("UPDATE gpus SET own_instances = $2 WHERE id = $1").bind(&gpu.0).bind(to_json(instances))
        }
        Decision::Withhold(withheld) => {
            let withheld = withheld.as_ref().map(to_json);
            sqlx::query("UPDATE gpus SET withheld = $2 WHERE id = $1").bind(&gpu.0).bind(withheld)
        }
        Decision::History(history) => {
            sqlx::query("UPDATE gpus SET health = $2 WHERE id = $1").bind(&gpu.0).bind(to_json(history))
        }
    };
    let done = query.execute(&mut **tx).await.map_err(StoreError::Sql)?;
    Ok(done.rows_affected() > 0)
}
