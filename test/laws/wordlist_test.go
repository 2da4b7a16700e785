package laws

import "regexp"

// word is one entry of the list: what is written in plain technical English instead.
//
// The pattern is matched against lower-case text: a line of a comment, of a string or
// of a document, or an identifier split into its words ("bookProblems" is
// "book problems"). Only an identifier can match ^ and $.
type word struct {
	name    string
	pattern *regexp.Regexp
	reason  string
	instead string
}

// The reasons that several words share.
const (
	metaphor = "a metaphor that the reader has to translate"
	person   = "a program is no person: name the component and what it does"
	unnamed  = "the sentence hides who acts: name the caller, client, component or user"
	riddle   = "the sentence cannot be understood at first reading"
)

func words() []word {
	re := regexp.MustCompile
	return []word{
		{"room", re(`\brooms?\b|\broomy\b`), metaphor, "package, component; capacity, space"},
		{"floor", re(`\bfloors?\b`), metaphor, "layer; minimum"},
		{"book", re(`\b(book|books|booked|booking)\b`), metaphor, "ledger (of addresses), store; recorded"},
		{"sight", re(`\bsights?\b`), metaphor, "observation; snapshot"},
		{"look", re(`\b(a|an|the|each|every|one|two|first|second|next|last|earlier|fresh|its|our) looks?\b|\blooks? (again|anew|twice|agree)\b|\blooked again\b|^look(ed|s)?\b`), metaphor, "observation, check; observe, read, check"},
		{"wall", re(`\bwalls?\b`), metaphor, "filter, limit"},
		{"line", re(`\bline of (callers|calls|pods|adds|dels|requests|waiters)\b|\b(wait|waits|waiting|stand|stands|join|joins) in (the |a )?line\b`), metaphor, "queue"},
		{"thin thread", re(`\bthin thread\b|\btest/thread\b`), metaphor, "end-to-end path; test/agent"},
		{"vandal", re(`\bvandals?\b`), metaphor, "external change"},
		{"hiccup", re(`\bhiccups?\b`), metaphor, "transient error"},
		{"nobody", re(`\bnobody\b|\bno[ -]one\b`), unnamed, "no caller, no process; unowned"},
		{"somebody", re(`\bsome(body|one)\b`), unnamed, "another process, a user, the caller"},
		{"anybody", re(`\bany(body|one)\b`), unnamed, "any caller, any client"},
		{"everybody", re(`\bevery(body|one)\b`), unnamed, "all callers, all clients"},
		{"whoever", re(`\bwho(so|m)?ever\b`), unnamed, "the caller that …"},
		{"whose", re(`\bwhose\b`), unnamed, "with, of; a sentence of its own"},
		{"mind", re(`\bmind(s|ed|ing)?\b`), person, "handle, check, account for"},
		{"obey", re(`\bobey(s|ed|ing)?\b`), person, "apply, follow"},
		{"tell", re(`\b(tell|tells|telling|told)\b`), person, "report, notify, return; distinguish"},
		{"let", re(`\b(let|lets|letting)\b`), person, "allow, permit; so that"},
		{"lie", re(`\ba lie\b|\blies? (to|about)\b`), person, "spoofed, false"},
		{"offence", re(`\b(offen[cs]es?|blame|blamed|blames|guilt|guilty|innocent)\b`), person, "cause; drift"},
		{"affair", re(`\baffairs?\b`), person, "decision of, property of"},
		{"patience", re(`\b(patience|patient|patiently)\b`), person, "timeout"},
		{"wish", re(`\bwish(es|ed)?\b`), person, "desired state, request"},
		{"vow", re(`\b(vow|swear|swears|sworn)\b`), person, "guarantee"},
		{"behind its back", re(`\bbehind (\w+('s)? ){1,2}backs?\b`), riddle, "externally, without a call of the agent"},
		{"on its way", re(`\bon (its|their|the|his) way\b`), riddle, "in flight, pending"},
		{"own doing", re(`\b(own|its|our|their|\w+'s) doing\b`), riddle, "own change"},
		{"for good", re(`\bfor good\b`), riddle, "permanently"},
		{"for ever", re(`\bfor ever\b`), riddle, "forever, without a bound"},
		{"all the same", re(`\ball the same\b`), riddle, "despite that, still"},
		{"anew", re(`\banew\b`), riddle, "again"},
		{"put right", re(`\bputs? (it |them |what .{0,30})?right\b`), riddle, "repair"},
		{"mend", re(`\bmend(s|ed|ing)?\b`), riddle, "repair, fix"},
		{"blink", re(`\bfor the blink\b`), riddle, "name the duration or the state"},
		{"longer than nothing", re(`\b(longer|more|later) than nothing\b`), riddle, "must be positive"},
		{"a word", re(`\bwithout a word\b|\bnot a word\b`), riddle, "without an error, without a message"},
		{"hence", re(`\b(hence|thence|whence|thereof|wherein|lest|naught|nought)\b`), riddle, "therefore, so; of it; in which"},
	}
}

// allowed is a true use of a word: a phrase that is left out of the text before the
// words are looked up in it, in the files below a folder. One that applies to nothing
// fails the test.
type allowed struct {
	below  string // "" is every file
	phrase *regexp.Regexp
	reason string
}

func exceptions() []allowed {
	re := regexp.MustCompile
	return []allowed{
		{"test/laws/wordlist_test.go", re(`.*`), "the list itself"},
		{"test/fault", re(`^WALL$`), "__WALL of wait4(2)"},
		{"", re(`\bLookPath\b`), "os/exec.LookPath"},
		{"api/introspection", re(`/v1/book\b`), "a path of the agent's HTTP interface, kept for its clients"},
		{"internal/app/cli/show.go", re(`json:"books"`), "a field of printed JSON, kept for its readers"},
		{"lab/node/etc.go", re(`:nobody:`), "the user nobody of /etc/passwd"},
		{"test/laws/words_test.go", re(`.*`), "the samples of the list's own test"},
	}
}
