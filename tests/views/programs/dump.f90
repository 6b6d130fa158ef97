! Writes the records that records.py describes: dump LIST, a file with lines "NETCDF<TAB>OUTPUT".
program dump
  use netcdf
  use iso_fortran_env, only: int8, int32, int64, real64
  implicit none
  character(len=4096) :: list, line
  integer :: tab, io, status, file

  call get_command_argument(1, list)
  open (newunit=file, file=trim(list), action='read')
  do
    read (file, '(a)', iostat=status) line
    if (status /= 0) exit
    tab = index(line, char(9))
    open (newunit=io, file=trim(line(tab + 1:)), access='stream', form='unformatted', status='replace')
    call contents(line(:tab - 1))
    close (io)
  end do
  print '(a)', trim(nf90_inq_libvers())
contains
  subroutine text(t)
    character(len=*), intent(in) :: t
    write (io) int(len(t), int32), t
  end subroutine

  subroutine attributes(nc, variable, shown, count)
    integer, intent(in) :: nc, variable, count
    character(len=*), intent(in) :: shown
    character(len=nf90_max_name) :: name
    character(len=:), allocatable :: chars
    real(real64), allocatable :: numbers(:)
    integer :: at, kind, length
    do at = 1, count
      status = nf90_inq_attname(nc, variable, at, name)
      status = nf90_inquire_attribute(nc, variable, trim(name), xtype=kind, len=length)
      ! The library cannot read lists of texts.
      if (kind == nf90_string) cycle
      write (io) 2_int32
      call text(shown)
      call text(trim(name))
      if (kind == nf90_char) then
        allocate (character(len=length) :: chars)
        status = nf90_get_att(nc, variable, trim(name), chars)
        write (io) 2_int32, int(length, int32), chars
        deallocate (chars)
      else
        allocate (numbers(length))
        status = nf90_get_att(nc, variable, trim(name), numbers)
        write (io) 0_int32, int(length, int32), numbers
        deallocate (numbers)
      end if
    end do
  end subroutine

  subroutine contents(path)
    character(len=*), intent(in) :: path
    integer :: nc, variables, globals, id
    status = nf90_open(path, nf90_nowrite, nc)
    if (status /= nf90_noerr) then
      write (io) 3_int32
      call text('')
      call text(trim(nf90_strerror(status)))
      return
    end if
    status = nf90_inquire(nc, nVariables=variables, nAttributes=globals)
    call attributes(nc, nf90_global, '', globals)
    do id = 1, variables
      call variable(nc, id)
    end do
    status = nf90_close(nc)
  end subroutine

  subroutine variable(nc, id)
    integer, intent(in) :: nc, id
    character(len=nf90_max_name) :: name, dimension_name
    integer :: kind, rank, count, at, total, dimensions(nf90_max_var_dims), sizes(nf90_max_var_dims), ones(nf90_max_var_dims)
    real(real64), allocatable :: numbers(:)
    integer(int64), allocatable :: whole(:)
    character, allocatable :: chars(:)
    status = nf90_inquire_variable(nc, id, name, kind, rank, dimensions, count)
    ones = 1
    do at = 1, rank
      status = nf90_inquire_dimension(nc, dimensions(at), len=sizes(at))
    end do
    total = product(sizes(:rank))
    ! One dimension in memory holds a variable of any rank.
    select case (kind)
    case (nf90_char)
      allocate (chars(total))
      status = nf90_get_var(nc, id, chars, start=ones(:rank), count=sizes(:rank))
    case (nf90_float, nf90_double)
      allocate (numbers(total))
      status = nf90_get_var(nc, id, numbers, start=ones(:rank), count=sizes(:rank))
    case default
      allocate (whole(total))
      status = nf90_get_var(nc, id, whole, start=ones(:rank), count=sizes(:rank))
    end select
    if (status /= nf90_noerr) then
      write (io) 3_int32
      call text(trim(name))
      call text(trim(nf90_strerror(status)))
      return
    end if
    write (io) 1_int32
    call text(trim(name))
    write (io) int(rank, int32)
    ! Fortran has the first index vary fastest.
    do at = rank, 1, -1
      status = nf90_inquire_dimension(nc, dimensions(at), name=dimension_name)
      call text(trim(dimension_name))
    end do
    do at = rank, 1, -1
      write (io) int(sizes(at), int32)
    end do
    if (allocated(chars)) write (io) 2_int32, int(total, int32), chars
    if (allocated(numbers)) write (io) 0_int32, int(total, int32), numbers
    if (allocated(whole)) write (io) 1_int32, int(total, int32), whole
    call attributes(nc, id, trim(name), count)
  end subroutine
end program
