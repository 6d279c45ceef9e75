package office

// MaxRows is the number of rows that a sheet can have.
const MaxRows = 1 << 20

// Query selects the part of a workbook to read.
type Query struct {
	Path string `json:"path"`
	// Sheet is the case-insensitive name of the sheet to read; empty: all sheets.
	Sheet string `json:"sheet"`
	// FirstSheet restricts the query to the first sheet if Sheet is empty.
	FirstSheet bool `json:"first_sheet"`
	// First and Last are the numbers of the rows to return, from 1 and inclusive.
	First int `json:"first"`
	Last  int `json:"last"`
	// MaxText is the approximate number of bytes of text to return. The rest is omitted.
	MaxText int `json:"max_text"`
}

// Workbook is the result of a query.
type Workbook struct {
	Names  []string `json:"names"`  // of all sheets
	Sheets []Sheet  `json:"sheets"` // selected by the query
}

// Sheet is one sheet. Rows and columns are counted up to the last that has a value.
type Sheet struct {
	Name    string `json:"name"`
	Rows    int    `json:"rows"`
	Columns int    `json:"columns"`
	Content []Row  `json:"content"` // rows of the query that have cells, by number
	// Problem is the reason if only this sheet cannot be read; usually empty.
	Problem string `json:"problem,omitempty"`
}

// Row is one row, with its cells from column A.
type Row struct {
	Number int      `json:"number"`
	Cells  []string `json:"cells"`
}
