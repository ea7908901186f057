//! Progress by stage: a spinner with the seconds on a terminal, plain lines elsewhere, nothing when quiet.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use super::error::plain;
use super::output::Output;
use crate::api::types::EventView;

/// How often the spinner turns.
const TURN: Duration = Duration::from_millis(120);
/// Messages that are remembered to recognise those that come again after a reconnect.
const REMEMBERED: usize = 1000;

/// Shows how a change goes on.
#[derive(Debug)]
pub struct Progress {
    out: Output,
    bar: Option<ProgressBar>,
    started: Instant,
    stage: Option<Stage>,
    seen: HashSet<(String, String, String)>,
}

#[derive(Debug)]
struct Stage {
    word: String,
    message: String,
    since: Instant,
}

impl Progress {
    /// Begins. The clock runs from `started`, when the request was sent.
    pub fn new(out: Output, started: Instant) -> Self {
        let bar = out.is_animated().then(|| {
            let bar = ProgressBar::new_spinner();
            // The template is a constant; the plain spinner serves as well.
            let style = ProgressStyle::with_template("{spinner} {msg} ({elapsed})");
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()).tick_chars("-\\|/ "));
            bar.set_message("accepted");
            bar.enable_steady_tick(TURN);
            bar
        });
        Self { out, bar, started, stage: None, seen: HashSet::new() }
    }

    /// Shows one event, once. Stages without a message only carry a change of state.
    pub fn event(&mut self, event: &EventView) {
        let key = (event.at.clone(), event.stage.clone(), event.message.clone());
        if event.message.is_empty() || self.seen.len() >= REMEMBERED || !self.seen.insert(key) {
            return;
        }
        self.stage(&event.stage, &event.message);
    }

    /// Shows a stage of our own making.
    pub fn stage(&mut self, word: &str, message: &str) {
        let (word, message) = (plain(word), plain(message));
        match &self.bar {
            Some(bar) => {
                bar.reset_elapsed();
                bar.set_message(format!("{word}: {message}"));
            }
            None => self.out.say(&line(&word, &message, self.started.elapsed())),
        }
        self.leave_stage();
        self.stage = Some(Stage { word, message, since: Instant::now() });
    }

    /// Ends, and leaves the last stage on the screen.
    pub fn finish(&mut self) {
        self.leave_stage();
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }

    /// On a terminal, the stage that is over becomes a line above the spinner.
    fn leave_stage(&mut self) {
        let (Some(bar), Some(stage)) = (&self.bar, self.stage.take()) else { return };
        bar.println(line(&stage.word, &stage.message, stage.since.elapsed()));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.finish();
    }
}

fn line(word: &str, message: &str, took: Duration) -> String {
    format!("{word}: {message} ({:.1} s)", took.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_stage_message_and_seconds() {
        assert_eq!(line("disk", "made", Duration::from_millis(1234)), "disk: made (1.2 s)");
    }
}
