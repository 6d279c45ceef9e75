package convert

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/guest/internal/pyerr"
	"github.com/cove-sandbox/cove/internal/system/proc"
)

// bootstrap runs markitdown with limits on memory and time, since documents are untrusted.
const bootstrap = `
import resource, runpy, sys
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[1]),) * 2)
resource.setrlimit(resource.RLIMIT_CPU, (int(sys.argv[2]),) * 2)
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
sys.argv = ["markitdown"] + sys.argv[3:]
runpy.run_module("markitdown", run_name="__main__")
`

// maxMemory limits the address space of one conversion.
const maxMemory = 4 << 30

// office converts with markitdown if it is installed, otherwise with package document.
func (s *Service) office(ctx context.Context, src *source, kind string) (string, error) {
	if err := src.check(kind); err != nil {
		return "", err
	}
	if argv, ok := s.markitdown(); ok {
		text, err := s.run(ctx, argv, src, kind)
		if err == nil && kind == ".pdf" {
			text = s.withTables(ctx, src, text)
		}
		return text, err
	}
	const how = "install it in the sandbox's Python environment with: pip install 'markitdown[pdf,docx,pptx,xlsx]'"
	switch kind {
	case ".xls", ".epub":
		return "", op.Errorf(op.Unavailable, "converting %s requires markitdown, which is not installed; %s", kind, how)
	}
	op.Hint(ctx, "markitdown is not installed, so the result has less formatting; %s", how)
	if kind == ".pdf" {
		text, _, err := s.docs.PDFMarkdown(ctx, src.path)
		return text, err
	}
	return s.read(ctx, src, kind)
}

// check checks the content of a document, since markitdown would convert any other content as text.
func (s *source) check(kind string) error {
	var ok bool
	switch kind {
	case ".pdf", ".xls":
		f, err := os.Open(s.path)
		if err != nil {
			return pyerr.From("convert", s.path, err)
		}
		defer f.Close()
		head := make([]byte, 1024)
		n, _ := io.ReadFull(f, head) // a shorter file is invalid
		if head = head[:n]; kind == ".pdf" {
			ok = bytes.Contains(head, []byte("%PDF-"))
		} else {
			ok = bytes.HasPrefix(head, []byte{0xd0, 0xcf, 0x11, 0xe0})
		}
	default:
		ok = zipKind(s.path) == kind
	}
	if !ok {
		return op.Errorf(op.Invalid, "%s cannot be converted: not a valid %s file, it may be damaged", s.title(), kind)
	}
	return nil
}

// withTables prefers package document for a PDF with tables that markitdown does not find: those
// without lines.
func (s *Service) withTables(ctx context.Context, src *source, text string) string {
	if strings.Contains(text, "| --") {
		return text
	}
	if own, tables, err := s.docs.PDFMarkdown(ctx, src.path); err == nil && tables > 0 {
		return own
	}
	return text
}

// markitdown returns the command of markitdown, if it is installed.
func (s *Service) markitdown() (argv []string, ok bool) {
	if s.cfg.Runner == nil {
		return nil, false
	}
	if s.cfg.Venv != "" {
		python := filepath.Join(s.cfg.Venv, "bin", "python")
		found, err := filepath.Glob(filepath.Join(s.cfg.Venv, "lib", "python*", "site-packages", "markitdown", "__main__.py"))
		if _, serr := os.Stat(python); err == nil && serr == nil && len(found) > 0 {
			return []string{python, "-I", "-c", bootstrap, fmt.Sprint(int64(maxMemory)), fmt.Sprint(int(s.cfg.Timeout.Seconds()) + 1)}, true
		}
	}
	if program, ok := s.cfg.Runner.Look("markitdown"); ok {
		return []string{program}, true
	}
	return nil, false
}

func (s *Service) run(ctx context.Context, argv []string, src *source, kind string) (string, error) {
	args := append(argv[1:], "--extension", kind, src.path)
	out := proc.NewCapture(s.cfg.MaxText+1, 0)
	env := append(s.cfg.Runner.Environ(), "PYTHONIOENCODING=utf-8", "PYTHONDONTWRITEBYTECODE=1")
	res, err := s.cfg.Runner.Run(ctx, proc.Command{Path: argv[0], Args: args, Env: env, Stdout: out, Limit: 64 << 10})
	if err != nil {
		return "", fmt.Errorf("run markitdown: %w", err)
	}
	if res.Exit.Code != 0 {
		s.cfg.Log.Info("markitdown failed", "document", src.title(), "exit", res.Exit.String())
		return "", op.Errorf(op.Invalid, "%s cannot be converted as %s: %s", src.title(), kind, lastLine(string(res.Stderr)))
	}
	text := strings.TrimSpace(strings.ToValidUTF8(string(out.Head()), "\uFFFD"))
	if text == "" {
		op.Hint(ctx, "the document contains no text; it may consist of images")
	}
	return text + "\n", nil
}

// lastLine returns the last line of a traceback, which is the error.
func lastLine(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return fmt.Sprintf("%.300s", strings.TrimSpace(lines[len(lines)-1]))
}
