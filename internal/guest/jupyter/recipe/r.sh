debian r-cran-irkernel
