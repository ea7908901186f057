//! Writing layout files.

use std::fmt::{Display, Write};

use super::{LayoutContent, LayoutDevices, LayoutEntry, LayoutFile};

impl LayoutFile {
    /// The file as text, which [`LayoutFile::read`] reads as the same; the same text for the same file. The notes stand
    /// above it, a comment each.
    pub fn write(&self, notes: &[String]) -> String {
        let mut text = String::new();
        for note in notes {
            let line: String = note.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
            line_of(&mut text, format_args!("# {line}"));
        }
        line_of(&mut text, "version: v1");
        line_of(&mut text, format_args!("{}:", self.format.configs_key()));
        for (name, entries) in &self.configs {
            line_of(&mut text, format_args!("  {}:", quoted(name)));
            for entry in entries {
                self.entry(&mut text, entry);
            }
        }
        text
    }

    fn entry(&self, text: &mut String, entry: &LayoutEntry) {
        let devices = match &entry.devices {
            LayoutDevices::All => "all".to_owned(),
            LayoutDevices::Indexes(list) => format!("[{}]", joined(list.iter())),
        };
        line_of(text, format_args!("    - devices: {devices}"));
        match entry.filter.as_slice() {
            [] => {}
            [one] => line_of(text, format_args!("      device-filter: \"{one}\"")),
            several => {
                let list = joined(several.iter().map(|one| format!("\"{one}\"")));
                line_of(text, format_args!("      device-filter: [{list}]"));
            }
        }
        let counts: Vec<(String, u32)> = match &entry.content {
            LayoutContent::MigOff => return line_of(text, "      mig-enabled: false"),
            LayoutContent::Mig(counts) => {
                line_of(text, "      mig-enabled: true");
                counts.iter().map(|(profile, count)| (profile.to_string(), *count)).collect()
            }
            LayoutContent::Vgpu(counts) => counts.iter().map(|(name, count)| (name.to_string(), *count)).collect(),
        };
        let key = self.format.devices_key();
        if counts.is_empty() {
            return line_of(text, format_args!("      {key}: {{}}"));
        }
        line_of(text, format_args!("      {key}:"));
        for (name, count) in counts {
            line_of(text, format_args!("        {}: {count}", quoted(&name)));
        }
    }
}

fn line_of(text: &mut String, line: impl Display) {
    // Writing to a string does not fail.
    let _ = writeln!(text, "{line}");
}

fn joined<T: Display>(items: impl Iterator<Item = T>) -> String {
    items.map(|item| item.to_string()).collect::<Vec<_>>().join(", ")
}

/// A YAML string in double quotes. All beyond plain ASCII is escaped: YAML takes some of it for ends of lines.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            ' '..='~' => quoted.push(c),
            _ => quoted.push_str(&format!("\\U{:08X}", u32::from(c))),
        }
    }
    quoted + "\""
}
