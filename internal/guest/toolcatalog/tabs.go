package toolcatalog

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/cove-sandbox/cove/internal/api/op"
)

type newTabIn struct {
	URL *string `json:"url" doc:"Address of the page; a blank page if omitted"`
}

func (b browser) newTab(ctx context.Context, in newTabIn) (string, error) {
	args := map[string]any{}
	if in.URL != nil {
		args["url"] = *in.URL
	}
	_, err := b.call(ctx, "POST /v1/browser/tabs", args)
	return "Opened a tab", err
}

// tabsOut contains the open tabs.
type tabsOut struct {
	Tabs []tab `json:"tabList"`
}

type tab struct {
	Index  int    `json:"index"`
	Active bool   `json:"active"`
	Title  string `json:"title"`
	URL    string `json:"url"`
}

func (b browser) tabs(ctx context.Context, _ op.None) (tabsOut, error) {
	out, err := b.call(ctx, routeTabs, map[string]any{})
	all := tabsOut{[]tab{}}
	list, _ := out.([]any)
	for _, item := range list {
		t := toObject(item)
		active, _ := t["is_active"].(bool)
		all.Tabs = append(all.Tabs, tab{t.number("index"), active, t.text("title"), t.text("url")})
	}
	return all, err
}

type tabIn struct {
	Index int `json:"index" doc:"Index of the tab in browser_tab_list"`
}

func (b browser) switchTab(ctx context.Context, in tabIn) (string, error) {
	_, err := b.call(ctx, "PUT /v1/browser/tabs/{index}/activate", map[string]any{"index": in.Index})
	return fmt.Sprintf("Switched to tab %d", in.Index), err
}

type closeTabIn struct {
	Index *int `json:"index" doc:"Index of the tab; the active one if omitted"`
}

func (b browser) closeTab(ctx context.Context, in closeTabIn) (string, error) {
	index := op.Value(in.Index)
	if in.Index == nil {
		list, err := b.tabs(ctx, op.None{})
		if err != nil {
			return "", err
		}
		for _, t := range list.Tabs {
			if t.Active {
				index = t.Index
			}
		}
	}
	_, err := b.call(ctx, "DELETE /v1/browser/tabs/{index}", map[string]any{"index": index})
	return fmt.Sprintf("Closed tab %d", index), err
}

// closeAll closes all tabs. The browser opens a blank one.
func (b browser) closeAll(ctx context.Context, _ op.None) (string, error) {
	list, err := b.tabs(ctx, op.None{})
	if err != nil {
		return "", err
	}
	for i := len(list.Tabs) - 1; i >= 0; i-- {
		if _, err := b.call(ctx, "DELETE /v1/browser/tabs/{index}", map[string]any{"index": i}); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("Closed %d tabs", len(list.Tabs)), nil
}

// downloadsOut contains the downloads of the browser.
type downloadsOut struct {
	List []download `json:"list"`
}

type download struct {
	ID        string `json:"guid"`
	URL       string `json:"url"`
	Filename  string `json:"filename"`
	Suggested string `json:"suggestedFilename"`
	Resource  string `json:"resourceUri"`
	Path      string `json:"path" doc:"Path of the file"`
	Created   string `json:"createdAt"`
	Progress  int    `json:"progress" doc:"Percent"`
	State     string `json:"state"`
}

func (b browser) downloads(ctx context.Context, _ op.None) (downloadsOut, error) {
	all := downloadsOut{[]download{}}
	out, err := b.call(ctx, routeDownloads, map[string]any{})
	list, _ := out.([]any)
	for _, item := range list {
		d := toObject(item)
		one := download{ID: d.text("guid"), URL: d.text("url"), Filename: d.text("filename"),
			Suggested: d.text("suggested_filename"), Created: d.text("created_at"), State: d.text("state")}
		if path := d.text("path"); path != "" {
			one.Filename, one.Path, one.Resource = filepath.Base(path), path, downloadURI(path)
		}
		if share, ok := d["progress"].(float64); ok {
			one.Progress = int(100 * share)
		}
		all.List = append(all.List, one)
	}
	return all, err
}
