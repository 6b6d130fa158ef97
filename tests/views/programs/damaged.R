# Parts of variables that ncdf4 reads: for each line of the file that is given (path, starts from 1, counts), a line `sum` with the sum, or "error".
suppressMessages(library(ncdf4))
for (line in readLines(commandArgs(TRUE)[1])) {
    fields <- strsplit(line, "\t")[[1]]
    numbers <- lapply(strsplit(fields[2:3], " "), as.numeric)
    file <- nc_open(fields[1])
    sum <- tryCatch(sprintf("%.17g", sum(ncvar_get(file, "v", numbers[[1]], numbers[[2]], raw_datavals = TRUE))), error = function(error) "error")
    cat("sum ", sum, "\n", sep = "")
    nc_close(file)
}
