package guide

import (
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/yuin/goldmark/ast"
)

// Block is a code block of a chapter. The text after its language says how it is tested:
//
//	```bash skip: needs a terminal
//	```python with: e2b
type Block struct {
	Chapter  string // path below docs
	Line     int
	Language string
	Skip     string // why it is not run
	With     string // what it needs besides the public SDK
	Group    int    // blocks of one group do the same in several languages; counts from 1 within the chapter
	Code     string
}

func (b Block) String() string { return fmt.Sprintf("%s:%d", b.Chapter, b.Line) }

// step is the title of shell commands that readers run in every language.
const step = "Shell"

// Title names the language for readers: shell commands are named after the client that they use.
func (b Block) Title() string {
	switch b.Language {
	case "bash":
		for line := range strings.Lines(b.Code) {
			word, _, _ := strings.Cut(strings.TrimSpace(line), " ")
			if word == "curl" || word == "aio" || word == "cove" {
				return word
			}
		}
		return step
	case "python":
		return "Python"
	case "typescript":
		return "TypeScript"
	case "go":
		return "Go"
	case "json":
		return "JSON"
	case "yaml":
		return "YAML"
	}
	return "Text"
}

// Wants returns what the block says that it prints: the rest of each line with "prints: ".
func (b Block) Wants() (list []string) {
	for line := range strings.Lines(b.Code) {
		if _, want, ok := strings.Cut(line, " prints: "); ok {
			list = append(list, strings.TrimSpace(want))
		}
	}
	return list
}

// Blocks returns the code blocks of all chapters, in their order. It fails for indented code,
// which cannot say how it is tested.
func Blocks(docs fs.FS) ([]Block, error) {
	chapters, err := load(docs)
	if err != nil {
		return nil, err
	}
	var list []Block
	for _, c := range chapters {
		group := 0
		err := ast.Walk(c.tree, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
			if !entering {
				return ast.WalkContinue, nil
			}
			switch n := n.(type) {
			case *ast.CodeBlock:
				return ast.WalkStop, fmt.Errorf("%s:%d: indented code: write it between ``` lines, with its language", c.path, c.lineOf(n))
			case *ast.FencedCodeBlock:
				if !c.joins(n) {
					group++
				}
				b := blockOf(n, c)
				b.Group = group
				list = append(list, b)
			}
			return ast.WalkContinue, nil
		})
		if err != nil {
			return nil, err
		}
	}
	return list, nil
}

// joins reports whether a block does the same as the block before it, in another language. Blocks that
// follow each other without text in between do, except for steps, and for a second block in a language.
func (c *chapter) joins(n ast.Node) bool { return len(c.titles(n)) > 1 }

// titles returns the languages of a group up to a block.
func (c *chapter) titles(n ast.Node) []string {
	title := blockOf(n.(*ast.FencedCodeBlock), c).Title()
	if before, ok := n.PreviousSibling().(*ast.FencedCodeBlock); ok && title != step {
		if titles := c.titles(before); titles[0] != step && !slices.Contains(titles, title) {
			return append(titles, title)
		}
	}
	return []string{title}
}

func blockOf(n *ast.FencedCodeBlock, c *chapter) Block {
	b := Block{Chapter: c.path, Line: c.lineOf(n), Language: string(n.Language(c.source))}
	if n.Info != nil {
		_, rest, _ := strings.Cut(string(n.Info.Segment.Value(c.source)), " ")
		key, value, _ := strings.Cut(rest, ": ")
		switch key {
		case "skip":
			b.Skip = value
		case "with":
			b.With = value
		}
	}
	var code strings.Builder
	for i := range n.Lines().Len() {
		s := n.Lines().At(i)
		code.Write(s.Value(c.source))
	}
	b.Code = code.String()
	return b
}

// lineOf returns the number of a block's first line of code.
func (c *chapter) lineOf(n ast.Node) int {
	if n.Lines().Len() == 0 {
		return 0
	}
	return strings.Count(string(c.source[:n.Lines().At(0).Start]), "\n") + 1
}
