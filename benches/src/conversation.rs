//! The growing conversation: the work on which storage figures are measured.
//!
//! The request of step i holds everything before it: 2 KB at first, about 780 KB after 200 steps. That is
//! 79.8 MB raw, of which about 1 MB is new text. Each step also has a response of about 4 KB, whose text is
//! the next request's last assistant message. Its tool call has input and output of about 1 KB. Text is drawn
//! from 5,000 made-up words by Zipf's law and JSON-escaped. The same seed gives the same bytes everywhere;
//! nothing is read from outside.

/// How a request differs from the one before it, besides what is appended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ConversationForm {
    /// Messages are only appended.
    Plain,
    /// A cache marker moves to the newest message.
    MovingMarker,
    /// The system prompt begins with the time and a nonce.
    ChangingHead,
}

impl ConversationForm {
    /// All forms.
    pub const ALL: [Self; 3] = [Self::Plain, Self::MovingMarker, Self::ChangingHead];

    /// A short name for tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::MovingMarker => "moving marker",
            Self::ChangingHead => "changing head",
        }
    }
}

/// What one step of the agent sends and gets.
#[derive(Clone, Debug)]
pub struct ConversationStep {
    /// The LLM request's body.
    pub request: Vec<u8>,
    /// The LLM response's body.
    pub response: Vec<u8>,
    /// The tool call's input.
    pub tool_input: Vec<u8>,
    /// The tool call's output.
    pub tool_output: Vec<u8>,
}

impl ConversationStep {
    /// All bytes of the step.
    #[must_use]
    pub fn raw_len(&self) -> usize {
        self.request.len() + self.response.len() + self.tool_input.len() + self.tool_output.len()
    }
}

/// JSON-escaped bytes of each text: the system prompt, an answer, a user's turn, a tool's output.
const SYSTEM_BYTES: usize = 1_500;
const ANSWER_BYTES: usize = 3_590;
const TURN_BYTES: usize = 190;
const TOOL_OUTPUT_BYTES: usize = 760;

/// An endless conversation; take as many steps as needed.
pub struct BenchConversation {
    form: ConversationForm,
    words: ZipfWords,
    random: BenchRng,
    system: String,
    /// Role and escaped text of each message so far.
    messages: Vec<(&'static str, String)>,
    step: u64,
}

impl BenchConversation {
    /// A conversation of this form from this seed.
    #[must_use]
    pub fn new(form: ConversationForm, seed: u64) -> Self {
        let mut random = BenchRng(seed);
        let words = ZipfWords::new(&mut random);
        let system = words.text(&mut random, SYSTEM_BYTES);
        let turn = words.text(&mut random, TURN_BYTES);
        Self { form, words, random, system, messages: vec![("user", turn)], step: 0 }
    }

    fn request(&mut self) -> Vec<u8> {
        let mut out = String::from(
            r#"{"model":"made-up-large-2","temperature":0.7,"top_p":0.95,"max_tokens":4096,"stream":false,"system":""#,
        );
        if self.form == ConversationForm::ChangingHead {
            let (minute, second) = (self.step / 60 % 60, self.step % 60);
            out += &format!(
                "It is 2026-03-01T09:{minute:02}:{second:02}Z, request {:016x}. ",
                self.random.next()
            );
        }
        out += &self.system;
        out += r#"","messages":["#;
        for (i, (role, text)) in self.messages.iter().enumerate() {
            if i > 0 {
                out.push(',');
            }
            out += &format!(r#"{{"role":"{role}","content":[{{"type":"text","text":"{text}""#);
            if self.form == ConversationForm::MovingMarker && i + 1 == self.messages.len() {
                out += r#","cache_control":{"type":"ephemeral"}"#;
            }
            out += "}]}";
        }
        out += "]}";
        out.into_bytes()
    }
}

impl Iterator for BenchConversation {
    type Item = ConversationStep;

    fn next(&mut self) -> Option<ConversationStep> {
        let request = self.request();
        let answer = self.words.text(&mut self.random, ANSWER_BYTES);
        let response = format!(
            r#"{{"id":"msg_{:016x}{:016x}","type":"message","role":"assistant","model":"made-up-large-2","content":[{{"type":"text","text":"{answer}"}}],"stop_reason":"end_turn","stop_sequence":null,"usage":{{"input_tokens":{},"output_tokens":{}}}}}"#,
            self.random.next(),
            self.random.next(),
            request.len() / 4,
            answer.len() / 4,
        );
        let call = format!("call_{:016x}", self.random.next());
        let query = self.words.text(&mut self.random, 120);
        let found = self.words.text(&mut self.random, TOOL_OUTPUT_BYTES);
        let tool_input =
            format!(r#"{{"id":"{call}","name":"search","arguments":{{"query":"{query}","limit":5}}}}"#);
        let tool_output = format!(r#"{{"tool_call_id":"{call}","content":"{found}"}}"#);
        let turn = self.words.text(&mut self.random, TURN_BYTES);
        self.messages.push(("assistant", answer));
        self.messages.push(("user", turn));
        self.step += 1;
        Some(ConversationStep {
            request,
            response: response.into_bytes(),
            tool_input: tool_input.into_bytes(),
            tool_output: tool_output.into_bytes(),
        })
    }
}

/// SplitMix64 (Steele, Lea and Flood, 2014).
#[derive(Clone, Debug)]
pub struct BenchRng(pub u64);

impl BenchRng {
    /// The next number.
    #[expect(clippy::should_implement_trait, reason = "it never ends, and is no iterator elsewhere either")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % bound as u64).unwrap_or(0)
    }

    /// Uniform in [0, 1).
    fn fraction(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// 5,000 made-up words; the word of rank k is drawn with a probability proportional to 1/k.
struct ZipfWords {
    words: Vec<String>,
    cumulated: Vec<f64>,
}

impl ZipfWords {
    const COUNT: usize = 5_000;

    fn new(random: &mut BenchRng) -> Self {
        const ONSETS: [&str; 20] = [
            "b", "d", "f", "g", "h", "k", "l", "m", "n", "p", "r", "s", "t", "v", "w", "st", "tr", "pl",
            "ch", "",
        ];
        const CORES: [&str; 9] = ["a", "e", "i", "o", "u", "ai", "ea", "ou", "io"];
        const CODAS: [&str; 10] = ["", "", "", "n", "r", "s", "t", "l", "nd", "ck"];
        let word = |random: &mut BenchRng| {
            let mut word = String::new();
            for _ in 0..1 + random.below(2) {
                for set in [&ONSETS[..], &CORES[..], &CODAS[..]] {
                    word += set[random.below(set.len())];
                }
            }
            word
        };
        let words: Vec<String> = (0..Self::COUNT).map(|_| word(random)).collect();
        let mut sum = 0.0;
        let cumulated = (1..=Self::COUNT)
            .map(|rank| {
                sum += 1.0 / rank as f64;
                sum
            })
            .collect();
        Self { words, cumulated }
    }

    fn word(&self, random: &mut BenchRng) -> &str {
        let total = self.cumulated.last().copied().unwrap_or(0.0);
        let wanted = random.fraction() * total;
        let rank = self.cumulated.partition_point(|&sum| sum <= wanted);
        &self.words[rank.min(Self::COUNT - 1)]
    }

    /// Sentences of about `len` bytes once JSON-escaped, with escaped line ends and quotes.
    fn text(&self, random: &mut BenchRng, len: usize) -> String {
        let mut out = String::with_capacity(len + 16);
        let mut left_in_sentence = 4 + random.below(14);
        while out.len() < len {
            match random.below(40) {
                0 => out += &format!("\\\"{}\\\"", self.word(random)),
                1 => out += &random.below(10_000).to_string(),
                _ => out += self.word(random),
            }
            left_in_sentence -= 1;
            if left_in_sentence == 0 {
                left_in_sentence = 4 + random.below(14);
                out += if random.below(6) == 0 { ".\\n\\n" } else { ". " };
            } else {
                out.push(' ');
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_described() {
        for form in ConversationForm::ALL {
            let steps: Vec<ConversationStep> = BenchConversation::new(form, 1).take(200).collect();
            let raw: usize = steps.iter().map(ConversationStep::raw_len).sum();
            assert!((78_000_000..82_000_000).contains(&raw), "{form:?}: {raw} bytes raw");
            assert!((1_800..2_300).contains(&steps[0].request.len()), "{}", steps[0].request.len());
            assert!((765_000..795_000).contains(&steps[199].request.len()), "{}", steps[199].request.len());
            for step in [&steps[0], &steps[199]] {
                assert!(serde_json::from_slice::<serde_json::Value>(&step.request).is_ok());
                assert!(serde_json::from_slice::<serde_json::Value>(&step.response).is_ok());
            }
        }
    }
}
