package grep

import "strings"

// kinds are the file types that the Go engine knows, by ripgrep's names. A test
// holds them against the installed ripgrep.
var kinds = map[string][]string{
	"asciidoc": {"*.adoc", "*.asc", "*.asciidoc"},
	"asm":      {"*.S", "*.asm", "*.s"},
	"awk":      {"*.awk"},
	"bazel":    {"*.BUILD", "*.bazel", "*.bazelrc", "*.bzl", "BUILD", "WORKSPACE"},
	"c":        {"*.[chH]", "*.[chH].in", "*.cats"},
	"clojure":  {"*.clj", "*.cljc", "*.cljs", "*.cljx"},
	"cmake":    {"*.cmake", "CMakeLists.txt"},
	"config":   {"*.cfg", "*.conf", "*.config", "*.ini"},
	"cpp":      {"*.[ChH]", "*.[ChH].in", "*.[ch]pp", "*.[ch]pp.in", "*.[ch]xx", "*.[ch]xx.in", "*.cc", "*.cc.in", "*.hh", "*.hh.in", "*.inl"},
	"cs":       {"*.cs"},
	"csharp":   {"*.cs"},
	"css":      {"*.css", "*.scss"},
	"csv":      {"*.csv"},
	"cython":   {"*.pxd", "*.pxi", "*.pyx"},
	"d":        {"*.d"},
	"dart":     {"*.dart"},
	"diff":     {"*.diff", "*.patch"},
	"docker":   {"*Dockerfile*"},
	"elisp":    {"*.el"},
	"elixir":   {"*.eex", "*.ex", "*.exs"},
	"elm":      {"*.elm"},
	"erlang":   {"*.erl", "*.hrl"},
	"fish":     {"*.fish"},
	"fortran":  {"*.F", "*.F77", "*.F90", "*.F95", "*.f", "*.f77", "*.f90", "*.f95", "*.pfo"},
	"fsharp":   {"*.fs", "*.fsi", "*.fsx"},
	"go":       {"*.go"},
	"gradle":   {"*.gradle"},
	"groovy":   {"*.gradle", "*.groovy"},
	"h":        {"*.h", "*.hpp"},
	"haskell":  {"*.c2hs", "*.cpphs", "*.hs", "*.hsc", "*.lhs"},
	"html":     {"*.ejs", "*.htm", "*.html"},
	"java":     {"*.java", "*.jsp", "*.jspx", "*.properties"},
	"jinja":    {"*.j2", "*.jinja", "*.jinja2"},
	"js":       {"*.js", "*.jsx", "*.vue"},
	"json":     {"*.json", "composer.lock"},
	"jsonl":    {"*.jsonl"},
	"julia":    {"*.jl"},
	"jupyter":  {"*.ipynb", "*.jpynb"},
	"kotlin":   {"*.kt", "*.kts"},
	"less":     {"*.less"},
	"lock":     {"*.lock", "package-lock.json"},
	"log":      {"*.log"},
	"lua":      {"*.lua"},
	"m4":       {"*.ac", "*.m4"},
	"make":     {"*.mak", "*.mk", "[Gg][Nn][Uu]makefile", "[Gg][Nn][Uu]makefile.am", "[Gg][Nn][Uu]makefile.in", "[Mm]akefile", "[Mm]akefile.am", "[Mm]akefile.in"},
	"markdown": {"*.markdown", "*.md", "*.mdown", "*.mkdn"},
	"matlab":   {"*.m"},
	"md":       {"*.markdown", "*.md", "*.mdown", "*.mkdn"},
	"meson":    {"meson.build", "meson_options.txt"},
	"nim":      {"*.nim", "*.nimble", "*.nimf", "*.nims"},
	"nix":      {"*.nix"},
	"objc":     {"*.h", "*.m"},
	"ocaml":    {"*.ml", "*.mli", "*.mll", "*.mly"},
	"org":      {"*.org", "*.org_archive"},
	"pascal":   {"*.dpr", "*.inc", "*.lpr", "*.pas", "*.pp"},
	"perl":     {"*.PL", "*.perl", "*.pl", "*.plh", "*.plx", "*.pm", "*.t"},
	"php":      {"*.php", "*.php3", "*.php4", "*.php5", "*.phtml"},
	"po":       {"*.po"},
	"protobuf": {"*.proto"},
	"ps":       {"*.cdxml", "*.ps1", "*.ps1xml", "*.psd1", "*.psm1"},
	"puppet":   {"*.erb", "*.pp", "*.rb"},
	"py":       {"*.py"},
	"r":        {"*.R", "*.Rmd", "*.Rnw", "*.r"},
	"racket":   {"*.rkt"},
	"readme":   {"*README", "README*"},
	"rst":      {"*.rst"},
	"ruby":     {"*.gemspec", "*.rb", "*.rbw", ".irbrc", "Gemfile", "Rakefile", "config.ru"},
	"rust":     {"*.rs"},
	"sass":     {"*.sass", "*.scss"},
	"scala":    {"*.sbt", "*.scala"},
	"sh":       {"*.bash", "*.bashrc", "*.csh", "*.cshrc", "*.ksh", "*.kshrc", "*.sh", "*.tcsh", "*.zsh", ".bash_login", ".bash_logout", ".bash_profile", ".bashrc", ".cshrc", ".kshrc", ".login", ".logout", ".profile", ".tcshrc", ".zlogin", ".zlogout", ".zprofile", ".zshenv", ".zshrc", "bash_login", "bash_logout", "bash_profile", "bashrc", "profile", "zlogin", "zlogout", "zprofile", "zshenv", "zshrc"},
	"sql":      {"*.psql", "*.sql"},
	"svg":      {"*.svg"},
	"swift":    {"*.swift"},
	"tcl":      {"*.tcl"},
	"tex":      {"*.bib", "*.cls", "*.dtx", "*.ins", "*.ltx", "*.sty", "*.tex"},
	"tf":       {"*.tf"},
	"thrift":   {"*.thrift"},
	"toml":     {"*.toml", "Cargo.lock"},
	"ts":       {"*.ts", "*.tsx"},
	"txt":      {"*.txt"},
	"vala":     {"*.vala"},
	"vb":       {"*.vb"},
	"verilog":  {"*.sv", "*.svh", "*.v", "*.vh"},
	"vhdl":     {"*.vhd", "*.vhdl"},
	"vim":      {"*.vim"},
	"xml":      {"*.dtd", "*.rng", "*.sch", "*.xhtml", "*.xjb", "*.xml", "*.xml.dist", "*.xsd", "*.xsl", "*.xslt"},
	"yacc":     {"*.y"},
	"yaml":     {"*.yaml", "*.yml"},
	"zig":      {"*.zig"},
}

// types are the names of the wanted types as ripgrep has them.
func (q Query) types() []string {
	types := make([]string, len(q.Types))
	for i, t := range q.Types {
		types[i] = t
		if known, ok := nicknames[strings.ToLower(t)]; ok {
			types[i] = known
		}
	}
	return types
}

// nicknames are names that people use for a type, whether or not the installed
// ripgrep knows them.
var nicknames = map[string]string{
	"python": "py", "python3": "py", "javascript": "js", "jsx": "js", "typescript": "ts", "tsx": "ts",
	"golang": "go", "c++": "cpp", "rs": "rust", "rb": "ruby", "yml": "yaml", "text": "txt", "makefile": "make",
	"dockerfile": "docker", "terraform": "tf", "kt": "kotlin", "c#": "cs", "htm": "html", "bash": "sh", "shell": "sh",
}
