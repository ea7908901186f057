//! Tables and cards for people: no lines drawn, columns aligned, colours only where wanted.

use comfy_table::{Attribute, Cell, CellAlignment, Color, ContentArrangement, Table, presets};
use jiff::Timestamp;

use super::error::plain;
use crate::api::types::CapsView;
use crate::model::units::{Mib, Seconds};

/// Which side of its column a text keeps to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// Words.
    Left,
    /// Numbers.
    Right,
}

/// A column's head.
pub type Column = (&'static str, Align);

/// A table with one row per thing. `colored` follows [`super::output::Output::is_colored`].
pub fn table(columns: &[Column], rows: Vec<Vec<String>>, colored: bool) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    if colored {
        table.enforce_styling();
    } else {
        table.force_no_tty();
    }
    table.set_header(columns.iter().map(|(name, align)| cell(name, *align).add_attribute(Attribute::Bold)));
    for row in rows {
        let cells = row.into_iter().zip(columns).map(|(text, (name, align))| {
            let text = plain(text);
            let cell = cell(if text.is_empty() { "-" } else { &text }, *align);
            match (*name, tone(&text)) {
                ("STATE" | "LEVEL", Some(color)) => cell.fg(color),
                _ => cell,
            }
        });
        table.add_row(cells);
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}

fn cell(text: &str, align: Align) -> Cell {
    Cell::new(text).set_alignment(match align {
        Align::Left => CellAlignment::Left,
        Align::Right => CellAlignment::Right,
    })
}

fn tone(word: &str) -> Option<Color> {
    match word {
        "running" | "ok" => Some(Color::Green),
        "failed" | "fail" => Some(Color::Red),
        "degraded" | "unknown" | "warn" => Some(Color::Yellow),
        "pending" | "creating" | "stopping" | "deleting" => Some(Color::Cyan),
        _ => None,
    }
}

/// One thing as lines of `label  value`; empty values are left out.
pub fn card(rows: &[(&str, String)]) -> String {
    let shown: Vec<_> = rows.iter().filter(|(_, value)| !value.is_empty()).collect();
    let width = shown.iter().map(|(label, _)| label.len()).max().unwrap_or_default();
    let margin = format!("\n{:width$}  ", "");
    let lines = |value: &str| value.lines().map(plain).collect::<Vec<_>>().join(&margin);
    shown.iter().map(|(label, value)| format!("{label:width$}  {}\n", lines(value))).collect()
}

/// A size for people.
pub fn size(mib: u64) -> String {
    Mib(mib).to_string()
}

/// How long ago something was, in its largest whole unit; empty where the time cannot be read.
pub fn age(since: &str, now: Timestamp) -> String {
    let Ok(then) = since.parse::<Timestamp>() else { return String::new() };
    let seconds = u64::try_from(now.as_second().saturating_sub(then.as_second())).unwrap_or_default();
    match seconds {
        s if s < 60 => format!("{s}s"),
        s if s < 3600 => format!("{}m", s / 60),
        s if s < 48 * 3600 => format!("{}h", s / 3600),
        s => format!("{}d", s / 86_400),
    }
}

/// Limits for people, as they are typed; `none` where nothing is limited.
pub fn caps(caps: &CapsView) -> String {
    let mut parts = Vec::new();
    let mut add = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            parts.push(format!("{name} {value}"));
        }
    };
    add("cpu-percent", caps.cpu_percent.map(|v| v.to_string()));
    add("cpu-shares", caps.cpu_shares.map(|v| v.to_string()));
    add("disk-iops", caps.disk_iops.map(|v| v.to_string()));
    add("disk-bps", caps.disk_bytes_per_sec.map(rate));
    add("net-in", caps.net_in_bytes_per_sec.map(rate));
    add("net-out", caps.net_out_bytes_per_sec.map(rate));
    if parts.is_empty() { "none".to_owned() } else { parts.join(", ") }
}

/// A rate for people.
fn rate(bytes: u64) -> String {
    for (shift, unit) in [(30, "G"), (20, "M"), (10, "K")] {
        if bytes >= 1 << shift && bytes.is_multiple_of(1 << shift) {
            return format!("{}{unit}/s", bytes >> shift);
        }
    }
    format!("{bytes}B/s")
}

/// A span of time for people.
pub fn span(seconds: u64) -> String {
    Seconds(seconds).to_string()
}

/// Up to the seconds of an RFC 3339 time, in UTC, for people.
pub fn moment(time: &str) -> String {
    match time.parse::<Timestamp>() {
        Ok(at) => at.strftime("%Y-%m-%d %H:%M:%S UTC").to_string(),
        Err(_) => plain(time),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_empty_cells_are_dashes() {
        let columns = [("NAME", Align::Left), ("STATE", Align::Left), ("CPUS", Align::Right)];
        let rows = vec![
            vec!["dev".to_owned(), "running".to_owned(), "2".to_owned()],
            vec!["a-long-name".to_owned(), String::new(), "128".to_owned()],
            vec!["evil\u{1b}[2J".to_owned(), "stopped".to_owned(), "1".to_owned()],
        ];
        insta::assert_snapshot!(table(&columns, rows, false), @r"
        NAME           STATE    CPUS
        dev            running     2
        a-long-name    -         128
        evil\u{1b}[2J  stopped     1
        ");
    }

    #[test]
    fn states_have_colours_only_where_wanted() {
        let columns = [("STATE", Align::Left)];
        let rows = || vec![vec!["running".to_owned()]];
        assert!(!table(&columns, rows(), false).contains('\u{1b}'));
        assert!(table(&columns, rows(), true).contains('\u{1b}'));
    }

    #[test]
    fn a_card_leaves_out_what_is_empty() {
        let rows = [("Name", "dev".to_owned()), ("Detail", String::new()), ("Memory", size(4096))];
        assert_eq!(card(&rows), "Name    dev\nMemory  4 GiB\n");
    }

    #[test]
    fn ages_are_short() {
        let now: Timestamp = "2026-11-30T12:00:00Z".parse().unwrap();
        for (since, shown) in [
            ("2026-11-30T11:59:30Z", "30s"),
            ("2026-11-30T11:15:00Z", "45m"),
            ("2026-11-29T12:00:00Z", "24h"),
            ("2026-11-20T12:00:00Z", "10d"),
            ("2026-11-30T12:00:09Z", "0s"),
            ("yesterday", ""),
        ] {
            assert_eq!(age(since, now), shown, "{since}");
        }
    }

    #[test]
    fn limits_are_shown_as_they_are_typed() {
        let some = CapsView {
            cpu_percent: Some(150),
            disk_bytes_per_sec: Some(50 << 20),
            net_in_bytes_per_sec: Some(1000),
            ..CapsView::default()
        };
        assert_eq!(caps(&some), "cpu-percent 150, disk-bps 50M/s, net-in 1000B/s");
        assert_eq!(caps(&CapsView::default()), "none");
    }
}
