//! Random stories: wishes, crashes of the manager, guests and strangers that do as they please, a hypervisor that fails,
//! loses replies or does not answer. Whatever happens, the promises hold after every event; and when the faults end,
//! everything becomes as it is wanted and nothing is left of what is gone.
//!
//! Nobody waits: where the manager would look again later, the times in the machine's row are moved back instead.

mod actions;
mod stage;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use self::actions::{Action, action};
use self::stage::Stage;

/// Stories per run; `PROPTEST_CASES` asks for more.
const CASES: u32 = 32;

/// Events in a story.
const LENGTH: std::ops::Range<usize> = 5..40;

#[test]
fn random_stories_keep_the_promises() {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(CASES);
    let config = Config { cases, failure_persistence: None, max_shrink_iters: 400, ..Config::default() };
    TestRunner::new(config)
        .run(&prop::collection::vec(action(), LENGTH), |actions| {
            play(&actions);
            Ok(())
        })
        .unwrap();
}

/// Stories that once broke a promise.
#[test]
fn stories_that_broke_a_promise_once() {
    use self::actions::Action::{Crash, Create, Look, Wish};
    use gvm::manager::power::Wanted;
    let up = [Create { has_gpu: false, is_stopped: false }, Look { vm: 0, times: 9 }];
    // The guest obeys at once, and before that was noted the owner wants it back.
    play(&[&up[..], &[Wish(0, Wanted::Stop), Look { vm: 0, times: 1 }, Wish(0, Wanted::Start), Crash]].concat());
}

/// Plays one story in a world of its own.
fn play(actions: &[Action]) {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap().block_on(async {
        let mut stage = Stage::new().await;
        for action in actions {
            stage.act(action).await;
            stage.check().await;
        }
        stage.end().await;
    });
}
