package main

// sysIOPL is a call that arm64 does not have.
const sysIOPL = 9998
