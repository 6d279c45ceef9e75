// Package workbook is what aio and its helper aio-markdown tell each other about Excel
// files: which part is wanted, and what it holds.
//
// It owns these types, which travel as JSON. It reads nothing itself: the library that
// does is linked into the helper only.
package workbook

// MaxRows is the number of rows that a sheet can have.
const MaxRows = 1 << 20

// Query is the part of a workbook to read.
type Query struct {
	Path string `json:"path"`
	// Sheet is the name of the one sheet to read, in any case; empty: all sheets.
	Sheet string `json:"sheet"`
	// FirstSheet restricts the query to the first sheet if Sheet names none.
	FirstSheet bool `json:"first_sheet"`
	// First and Last are the numbers of the rows to return, from 1 and inclusive.
	First int `json:"first"`
	Last  int `json:"last"`
	// MaxText is about how many bytes of text to return. The rest is left out.
	MaxText int `json:"max_text"`
}

// Book is what a workbook holds.
type Book struct {
	Names  []string `json:"names"`  // of all sheets
	Sheets []Sheet  `json:"sheets"` // those of the query
}

// Sheet is one sheet. Rows and columns are counted up to the last that has a value.
type Sheet struct {
	Name    string `json:"name"`
	Rows    int    `json:"rows"`
	Columns int    `json:"columns"`
	Content []Row  `json:"content"` // rows of the query that have cells, by number
	// Problem is why the sheet cannot be read although the workbook can; usually empty.
	Problem string `json:"problem,omitempty"`
}

// Row is one row, with its cells from column A.
type Row struct {
	Number int      `json:"number"`
	Cells  []string `json:"cells"`
}
