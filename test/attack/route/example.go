package route

// attackerFiles returns the paths of the attacker's files in a sandbox; XHOMEX is its home. The
// test that visits them replaces words between two X.
func attackerFiles() (list []string) {
	for _, name := range []string{
		"Downloads/invoice.html", "Downloads/invoice.htm", "Downloads/invoice.svg", "Downloads/invoice.xhtml",
		"Downloads/invoice.xml", "Downloads/invoice.xsl",
		"Downloads/invoice.txt", "Downloads/invoice", "Downloads/invoice.js", "Downloads/invoice.mhtml",
		"Downloads/invoice.pdf", "Downloads/invoice.md",
		"Downloads/invoice.css", "Downloads/invoice.json", "Downloads/invoice.ipynb", "Downloads/invoice.html.gz",
		"Downloads/evil.tar", "Downloads",
		"home.html", "home.svg", "work/page.html", "skill/page.html", ".local/state/aio/evil.html",
	} {
		list = append(list, "XHOMEX/"+name)
	}
	return list
}

// SandboxExamples returns values for the routes of a sandbox.
func SandboxExamples() Examples {
	files := attackerFiles()
	e := Examples{
		Files: files,
		Values: map[string]string{
			"port": "XPORTX", "id": "XACTIVITYX", "watcher_id": "XWATCHX", "skills_content.name": "evil",
			"session_id": "s", "report_id": "none", "server_name": "none",
			"url": "XEVILX", "terminal_page.command": "id",
		},
		Below: map[string][]string{
			"preview_proxy": {"", "page.html", "sw.js", "page.svg"}, "preview_absproxy": {"", "page.html"},
			"code_server": {"", "vscode-remote-resource?path=XHOMEX/Downloads/invoice.html", "proxy/XPORTX/",
				"static/out/vs/workbench/contrib/webview/browser/pre/index.html"},
			"jupyter_lab": {"", "lab", "files/Downloads/invoice.html", "view/Downloads/invoice.html",
				"nbconvert/html/Downloads/invoice.ipynb", "files/Downloads/invoice.svg"},
			"e2b_envd":        {"health", "envs", "metrics", "files?path=Downloads/invoice.html&username=root"},
			"e2b_interpreter": {"health", "contexts"}, "cdp": {"", "version", "list", "page/x"},
			"devtools": {"page/x", "browser/x", "inspector.html"},
		},
	}
	for _, file := range files {
		e.Below["e2b_envd"] = append(e.Below["e2b_envd"], "files?path="+file)
	}
	return e
}

// HubExamples returns values for the routes of a hub.
func HubExamples() Examples {
	e := Examples{
		Files: attackerFiles(),
		Values: map[string]string{"name": "a", "id": "XRECORDX", "entry": "XENTRYX", "alias": "base", "build": "XRECORDX", "hash": "XRECORDX",
			"sandbox_ids": "XCLIENTX"},
		Below: map[string][]string{"sandbox_proxy": {
			"", "terminal?command=id", "v1/docs", "proxy/XPORTX/", "absproxy/XPORTX/",
			"v1/file/download?path=XHOMEX/Downloads/invoice.html", "e2b/envd/files?path=Downloads/invoice.html",
			"e2b/envd/files?path=Downloads/invoice.svg", "v1/file/preview?path=XHOMEX/Downloads/invoice.html",
			"v1/sandbox/activity/export", "v1/sandbox",
		}, "e2b_other": {"none", "<script>evil()</script>.html"}},
	}
	for _, name := range []string{"e2b_get", "e2b_metrics", "e2b_logs"} {
		e.Values[name+".id"] = "XCLIENTX"
	}
	return e
}
