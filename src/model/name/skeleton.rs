//! What a name looks like. Two people whose names look alike would be mistaken for each other on a page, in the record, or
//! by who is asked for access; so no two of them share a skeleton.

use super::UserName;

impl UserName {
    /// The name with everything folded together that looks alike: `0` and `o`; `1`, `i` and `l`; `-` and `_`; `rn` and
    /// `m`; `vv` and `w`. It is for comparing only.
    pub fn skeleton(&self) -> String {
        let folded: String = self
            .as_str()
            .chars()
            .map(|letter| match letter {
                '0' => 'o',
                '1' | 'i' => 'l',
                '_' | '.' => '-',
                other => other.to_ascii_lowercase(),
            })
            .collect();
        let mut folded = folded.replace("rn", "m").replace("vv", "w");
        while folded.contains("--") {
            folded = folded.replace("--", "-");
        }
        folded
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn looks_like(one: &str, other: &str) -> bool {
        one.parse::<UserName>().unwrap().skeleton() == other.parse::<UserName>().unwrap().skeleton()
    }

    #[test]
    fn what_looks_alike_is_the_same() {
        for (one, other) in [
            ("alice", "a1ice"),
            ("alice", "allce"),
            ("bob", "b0b"),
            ("anna-b", "anna_b"),
            ("anna-b", "anna--b"),
            ("modern", "modem"),
            ("willi", "vvilli"),
            ("user10", "userlo"),
        ] {
            assert!(looks_like(one, other), "{one} {other}");
        }
    }

    #[test]
    fn names_of_a_class_stay_apart() {
        for (one, other) in [
            ("student1", "student11"),
            ("group1-11", "group11-1"),
            ("anna", "ana"),
            ("anna-b", "annab"),
            ("student2", "student3"),
            ("alice", "alicia"),
        ] {
            assert!(!looks_like(one, other), "{one} {other}");
        }
    }
}
